/* worker/group/hier_blocks.c - all_gather and reduce_scatter
 *
 * Every rank has a block, and a chunk is a part of every block. Each channel sends its
 * slices of a chunk of all blocks around the ring of hosts: every byte crosses a link
 * between hosts once per host, whatever the number of ranks.
 *
 * all_gather, step t: before it, all ranks copy their part of chunk t to their staging
 * buffers; they copy out this host's parts of chunk t-1; channels send theirs of chunk
 * t-1 around the ring and publish what they receive; all ranks copy out that of chunk
 * t-2.
 *
 * reduce_scatter, step t: before it, all ranks copy chunk t of all blocks to their
 * staging buffers; channels reduce their slices of chunk t-1 over the host, then over the
 * hosts, and publish the result; all ranks copy out their own part of chunk t-2.
 *
 * A staging buffer has two regions: a rank's own data, and what a channel publishes. A
 * rank alone on its host does the same without staging buffers.
 */
#include "worker/group/hier.h"

#include "common/mem.h"
#include "worker/group/reduce.h"

/* My channel's slice of chunk k of a block. */
static struct range slice(const struct hier *h, const struct coll *c, int rank,
                          unsigned k, int channel)
{
    return range_slice(coll_part(c, rank, k), c->type, channel, h->nchannels);
}

/* Elements of a slice of a chunk, at most. */
static size_t slice_room(const struct hier *h, const struct coll *c)
{
    size_t line = SHM_LINE / type_size(c->type), n = (size_t)h->nchannels;
    return (c->chunk / line + n) / n * line;
}

/* Size of the region of a rank's own data, in elements; the published region follows. */
static size_t given_room(const struct hier *h, const struct coll *c)
{
    return c->kind == COLL_ALL_GATHER ? c->chunk : c->chunk * (size_t)h->layout->size;
}

/* As many elements as fit the staging buffers of the largest host: the same on all
 * hosts. */
size_t hier_blocks_chunk(const struct hier *h, const struct coll *c)
{
    size_t line = SHM_LINE / type_size(c->type), size = (size_t)h->layout->size;
    size_t lines = SHM_CHUNK / SHM_LINE, channels = (size_t)h->nchannels, shown = size;
    size_t given = c->kind == COLL_ALL_GATHER ? 1 : size;
    if (c->kind == COLL_REDUCE_SCATTER)
        shown = (size_t)h->most_local;
    lines -= lines > 2 * shown ? 2 * shown : 0; /* the ends of the slices */
    return lines * channels / (given * channels + shown) * line;
}

size_t hier_blocks_scratch(const struct hier *h, const struct coll *c)
{
    return slice_room(h, c) * (size_t)h->layout->size;
}

static char *shown(const struct hier *h, const struct coll *c, int channel, unsigned k)
{
    return coll_at(c, shm_stage(h->shm, channel, k), given_room(h, c));
}

/* Pass the pieces of all hosts around the ring: those of a host after those of the host
 * behind it. */
static void start_ring(struct hier *h, struct coll *c, unsigned k)
{
    bool reduces = c->kind == COLL_REDUCE_SCATTER;
    int n = h->layout->nhosts, first = reduces ? (h->host + n - 1) % n : h->host;
    struct tcp_op o = hier_op(h, c, h->team);
    o.list = xcalloc((size_t)h->layout->size, sizeof *o.list);
    for (int i = 0; i < n; i++) {
        int nranks;
        const int *ranks = layout_host(h->layout, (first - i + n) % n, &nranks);
        o.nlast = (unsigned)nranks;
        o.nfirst = i == 0 ? o.nlast : o.nfirst;
        for (int j = 0; j < nranks; j++) {
            struct range of = slice(h, c, ranks[j], k, h->local);
            char *at = reduces
                           ? coll_at(c, c->scratch, (size_t)ranks[j] * slice_room(h, c))
                           : coll_at(c, c->recv, of.at);
            o.list[o.nlist++] = (struct iovec){at, of.n * type_size(c->type)};
        }
    }
    o.nreduce = reduces ? o.nlist - o.nfirst : 0;
    h->op = o;
    tcp_ring(&h->op);
    c->on_tcp = true;
}

/* ---- all_gather ---- */

/* Published data of chunk k: the slices of all ranks of other hosts, in a row. With
 * `put` this rank is the channel and writes, otherwise it reads. */
static void pass_shown(const struct hier *h, const struct coll *c, int channel,
                       unsigned k, bool put)
{
    char *at = shown(h, c, channel, k);
    for (int r = 0; r < h->layout->size; r++) {
        if (h->layout->members[r].host == h->host)
            continue;
        struct range of = slice(h, c, r, k, channel);
        char *mine = coll_at(c, c->recv, of.at);
        coll_copy(c, put ? at : mine, put ? mine : at, of.n);
        at = coll_at(c, at, of.n);
    }
}

static void gather_give(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    int me = h->layout->rank;
    struct range b = coll_block(c, me), r = coll_part(c, me, t);
    const char *mine = coll_at(c, c->send, r.at - b.at);
    char *own = coll_at(c, c->recv, r.at);
    if (s && !shm_coll_direct(s, s->me))
        coll_copy(c, shm_stage(s, s->me, t), mine, r.n);
    if (own != mine)
        coll_copy(c, own, mine, r.n);
}

static void gather_begin(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    for (int i = 0; s && h->tcp && i < h->nchannels && t >= 2; i++) {
        if (i != h->local)
            pass_shown(h, c, i, t - 2, false);
    }
    for (int i = 0; s && i < s->n && t >= 1; i++) {
        struct range of = coll_part(c, s->ranks[i], t - 1);
        const char *there = shm_coll_direct(s, i);
        size_t skip = of.at - coll_block(c, s->ranks[i]).at;
        if (i != s->me)
            coll_copy(c, coll_at(c, c->recv, of.at),
                      there ? coll_at(c, there, skip) : shm_stage(s, i, t - 1), of.n);
    }
    if (h->tcp && hier_works(h, c, t))
        start_ring(h, c, t - c->lead);
}

/* Publishes what has come from other hosts. */
static void gather_end(struct hier *h, struct coll *c, unsigned t)
{
    if (h->shm)
        pass_shown(h, c, h->local, t - 1, true);
}

const struct coll_step hier_blocks_gather = {gather_give, gather_begin, gather_end};

/* ---- reduce_scatter ---- */

/* Reduce range `of` of chunk k of rank r's block over the ranks of this host. */
static void reduce_blocks(const struct hier *h, struct coll *c, unsigned k, int r,
                          struct range of, void *out)
{
    struct shm *s = h->shm;
    size_t at = (size_t)r * c->chunk + of.at - coll_part(c, r, k).at;
    for (int i = 0; i < s->n; i++) {
        const char *there = i == s->me ? c->send : shm_coll_direct(s, i);
        s->in[i] = there ? coll_at(c, there, of.at) : coll_at(c, shm_stage(s, i, k), at);
    }
    reduce_many(&out, 1, s->in, s->n, of.n, c->type, c->op, h->tcp ? 0 : s->n);
}

static void reduce_slices(const struct hier *h, struct coll *c, unsigned k)
{
    for (int r = 0; r < h->layout->size; r++) {
        struct range of = slice(h, c, r, k, h->local);
        char *out = coll_at(c, c->scratch, (size_t)r * slice_room(h, c));
        if (h->shm)
            reduce_blocks(h, c, k, r, of, out);
        else
            coll_copy(c, out, coll_at(c, c->send, of.at), of.n);
    }
}

/* Within one host no other rank reads this one's own block. */
static void scatter_give(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    for (int r = 0; s && !shm_coll_direct(s, s->me) && r < h->layout->size; r++) {
        struct range of = coll_part(c, r, t);
        if (h->tcp || r != s->me)
            coll_copy(c, coll_at(c, shm_stage(s, s->me, t), (size_t)r * c->chunk),
                      coll_at(c, c->send, of.at), of.n);
    }
}

static void scatter_begin(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    int me = h->layout->rank;
    for (int i = 0; s && i < h->nchannels && t >= 2; i++) {
        struct range of = slice(h, c, me, t - 2, i);
        coll_copy(c, coll_at(c, c->recv, of.at - coll_block(c, me).at),
                  coll_at(c, shown(h, c, i, t - 2), (size_t)s->me * slice_room(h, c)),
                  of.n);
    }
    if (hier_works(h, c, t)) {
        reduce_slices(h, c, t - c->lead);
        start_ring(h, c, t - c->lead);
    }
}

/* This rank's result; or, on a shared host, published results. */
static void scatter_end(struct hier *h, struct coll *c, unsigned t)
{
    unsigned k = t - c->lead;
    int n;
    const int *ranks = layout_host(h->layout, h->host, &n);
    for (int j = 0; j < n; j++) {
        int rank = ranks[j];
        size_t room = slice_room(h, c);
        struct range of = slice(h, c, rank, k, h->local);
        char *from = coll_at(c, c->scratch, (size_t)rank * room);
        char *to = h->shm ? coll_at(c, shown(h, c, h->local, k), (size_t)j * room)
                          : coll_at(c, c->recv, of.at - coll_block(c, rank).at);
        reduce_finish(from, of.n, c->type, c->op, h->layout->size);
        coll_copy(c, to, from, of.n);
    }
}

const struct coll_step hier_blocks_scatter = {scatter_give, scatter_begin, scatter_end};

/* Within one host: reduce this rank's part of chunk t-1 to its place. */
static void scatter_here(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    if (t == 0)
        return;
    struct range b = coll_block(c, s->me), r = coll_part(c, s->me, t - 1);
    reduce_blocks(h, c, t - 1, s->me, r, coll_at(c, c->recv, r.at - b.at));
}

const struct coll_step hier_blocks_scatter_here = {scatter_give, scatter_here, NULL};
