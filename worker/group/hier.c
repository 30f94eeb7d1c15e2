/* worker/group/hier.c - see hier.h
 *
 * A rank that shares its host works in the steps of shm_coll.c, with one difference: a
 * step may contain an operation between hosts, so that it ends later than it began. The
 * chunks depend on the sizes alone, never on where a buffer is: they must be the same
 * on all hosts.
 *
 * all_reduce, step t: copy chunk t to the staging buffer (or it is in the arena);
 * channels reduce their slice of chunk t-1 over the host, then over the hosts; all
 * ranks copy out the slices of chunk t-2.
 *
 * reduce, step t: likewise, but into scratch memory, and only the root copies out.
 *
 * broadcast, step t: one rank per host forwards chunk t from host to host; the others
 * copy chunk t-1 from its staging buffer.
 *
 * all_gather and reduce_scatter: hier_blocks.c. A rank alone on its host has no staging
 * buffers and no barriers between the steps; its data are in its own buffer.
 */
#include "worker/group/hier.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/reduce.h"

#include <stdlib.h>
#include <string.h>

static unsigned chunk_count(const struct coll *c)
{
    return (unsigned)((c->count + c->chunk - 1) / c->chunk);
}

/* My place in a team of one rank per host is my host. */
static void start_reduce(struct hier *h, struct coll *c, char *data, size_t count)
{
    int n = h->layout->nhosts;
    if (c->kind == COLL_REDUCE)
        tcp_reduce(&h->op, hier_head(h, c), h->team, n, h->host,
                   h->layout->members[c->root].host, data, count, c->type, c->op);
    else
        tcp_all_reduce(&h->op, hier_head(h, c), h->team, n, h->host, data, count, c->type,
                       c->op);
    c->on_tcp = true;
}

static void choose_speakers(const struct hier *h, const struct coll *c)
{
    for (int i = 0; i < h->layout->nhosts; i++)
        h->speakers[i] = h->layout->by_host[h->layout->host_start[i]];
    h->speakers[h->layout->members[c->root].host] = c->root;
}

static void start_broadcast(struct hier *h, struct coll *c, struct range r)
{
    tcp_broadcast(&h->op, hier_head(h, c), h->speakers, h->layout->nhosts, h->host,
                  h->layout->members[c->root].host, coll_at(c, c->recv, r.at),
                  r.n * type_size(c->type));
    c->on_tcp = true;
}

static void start_barrier(struct hier *h, struct coll *c)
{
    tcp_all_reduce(&h->op, hier_head(h, c), h->speakers, h->layout->nhosts, h->host, NULL,
                   0, DDP_U8, DDP_SUM);
    c->on_tcp = true;
}

static bool in_blocks(const struct coll *c)
{
    return c->kind == COLL_ALL_GATHER || c->kind == COLL_REDUCE_SCATTER;
}

static int tcp_part(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err)
{
    int rc = tcp_op_advance(h->tcp, &h->op, culprit, err);
    if (rc == ADVANCE_DONE) {
        tcp_op_finish(&h->op);
        c->on_tcp = false;
    }
    return rc;
}

/* ---- alone on this host ---- */

/* A chunk of a reduction, in the buffer of the result or in scratch memory. */
static void start_alone_reduce(struct hier *h, struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t);
    char *to = c->scratch ? c->scratch : coll_at(c, c->recv, r.at);
    const char *from = coll_at(c, c->send, r.at);
    if (to != from && r.n > 0)
        coll_copy(c, to, from, r.n);
    start_reduce(h, c, to, r.n);
}

/* The result of chunk t is where the operation between hosts has left it. */
static void end_alone_reduce(struct hier *h, struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t);
    if (!c->scratch)
        reduce_finish(coll_at(c, c->recv, r.at), r.n, c->type, c->op, h->layout->size);
}

/* ---- together with others of this host ---- */

static void copy_slices_out(const struct hier *h, struct coll *c, unsigned chunk,
                            bool whole)
{
    if (!whole)
        shm_coll_collect(h->shm, c, chunk, h->nchannels, h->local);
    for (int i = 0; whole && i < h->nchannels; i++) {
        struct range of = range_slice(coll_chunk(c, chunk), c->type, i, h->nchannels);
        if (i != h->local)
            coll_copy(c, coll_at(c, c->recv, of.at),
                      coll_at(c, shm_coll_direct(h->shm, i), of.at), of.n);
    }
}

/* Reduce this rank's slice of a chunk over the ranks of this host. */
static void reduce_slice(struct hier *h, struct coll *c, unsigned chunk, bool whole)
{
    struct shm *s = h->shm;
    struct range of = range_slice(coll_chunk(c, chunk), c->type, h->local, h->nchannels);
    for (int i = 0; i < s->n; i++)
        s->in[i] = whole ? coll_at(c, shm_coll_direct(s, i), of.at)
                         : shm_coll_staged(s, c, i, chunk, of.at);
    void *out = c->scratch ? c->scratch : coll_at(c, c->recv, of.at);
    reduce_many(&out, 1, s->in, s->n, of.n, c->type, c->op, 0);
    start_reduce(h, c, out, of.n);
}

static void copy_in(const struct hier *h, const struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t);
    coll_copy(c, shm_stage(h->shm, h->local, t), coll_at(c, c->send, r.at), r.n);
}

static void all_reduce_begin(struct hier *h, struct coll *c, unsigned t)
{
    bool whole = shm_coll_all_direct(h->shm);
    unsigned lead = whole ? 0 : 1, nchunks = chunk_count(c);
    if (t > lead)
        copy_slices_out(h, c, t - lead - 1, whole);
    if (!whole && t < nchunks)
        copy_in(h, c, t);
    if (h->local < h->nchannels && t >= lead && t - lead < nchunks)
        reduce_slice(h, c, t - lead, whole);
}

static void all_reduce_end(struct hier *h, struct coll *c, unsigned t)
{
    bool whole = shm_coll_all_direct(h->shm);
    unsigned chunk = whole ? t : t - 1;
    struct range of = range_slice(coll_chunk(c, chunk), c->type, h->local, h->nchannels);
    char *mine = coll_at(c, c->recv, of.at);
    reduce_finish(mine, of.n, c->type, c->op, h->layout->size);
    if (!whole)
        coll_copy(c, shm_coll_staged(h->shm, c, h->local, chunk, of.at), mine, of.n);
}

/* The results are in the staging buffers of the channels of the root's host; the root
 * copies them. */
static void reduce_begin(struct hier *h, struct coll *c, unsigned t)
{
    if (t >= 2 && c->root == h->layout->rank)
        shm_coll_collect(h->shm, c, t - 2, h->nchannels, -1);
    if (t < chunk_count(c))
        copy_in(h, c, t);
    if (h->local < h->nchannels && t >= 1 && t - 1 < chunk_count(c))
        reduce_slice(h, c, t - 1, false);
}

static void reduce_end(struct hier *h, struct coll *c, unsigned t)
{
    struct range of = range_slice(coll_chunk(c, t - 1), c->type, h->local, h->nchannels);
    if (h->layout->members[c->root].host != h->host)
        return;
    reduce_finish(c->scratch, of.n, c->type, c->op, h->layout->size);
    coll_copy(c, shm_coll_staged(h->shm, c, h->local, t - 1, of.at), c->scratch, of.n);
}

static bool speaks(const struct hier *h)
{
    return h->speakers[h->host] == h->layout->rank;
}

static void broadcast_begin(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    int speaker = h->layout->members[h->speakers[h->host]].local;
    if (speaks(h) && t < chunk_count(c)) {
        start_broadcast(h, c, coll_chunk(c, t));
    } else if (!speaks(h) && t > 0) {
        struct range r = coll_chunk(c, t - 1);
        const char *there = shm_coll_direct(s, speaker);
        coll_copy(c, coll_at(c, c->recv, r.at),
                  there ? coll_at(c, there, r.at) : shm_stage(s, speaker, t - 1), r.n);
    }
}

static void broadcast_end(struct hier *h, struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t);
    if (h->shm && !shm_coll_direct(h->shm, h->local))
        coll_copy(c, shm_stage(h->shm, h->local, t), coll_at(c, c->recv, r.at), r.n);
}

static void barrier_begin(struct hier *h, struct coll *c, unsigned t)
{
    if (t == 0 && speaks(h))
        start_barrier(h, c);
}

/* What begins in a step, and what is done when its operation between hosts has ended. */
struct step {
    void (*begin)(struct hier *h, struct coll *c, unsigned t);
    void (*end)(struct hier *h, struct coll *c, unsigned t);
};

static const struct step *step_of(const struct hier *h, const struct coll *c)
{
    static const struct step steps[] = {
        [COLL_BARRIER] = {barrier_begin, NULL},
        [COLL_BROADCAST] = {broadcast_begin, broadcast_end},
        [COLL_ALL_REDUCE] = {all_reduce_begin, all_reduce_end},
        [COLL_REDUCE] = {reduce_begin, reduce_end},
        [COLL_ALL_GATHER] = {hier_blocks_begin, hier_blocks_end},
        [COLL_REDUCE_SCATTER] = {hier_blocks_begin, hier_blocks_end},
    };
    static const struct step alone = {start_alone_reduce, end_alone_reduce};
    return coll_reduces(c->kind) && !in_blocks(c) && !h->shm ? &alone : &steps[c->kind];
}

static int advance(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err)
{
    struct shm *s = h->shm;
    const struct step *step = step_of(h, c);
    for (;;) {
        switch (c->state) {
        case COLL_NEW:
            if (s)
                shm_coll_announce(s, c, 0);
            c->state = COLL_ANNOUNCED;
            break;
        case COLL_ANNOUNCED:
            if (s && !shm_all_posted(s))
                return ADVANCE_LATER;
            if (s && shm_coll_check(s, c, err) < 0)
                return ADVANCE_ERROR;
            step->begin(h, c, c->t);
            c->state = COLL_WORKS;
            break;
        case COLL_WORKS:
            if (c->on_tcp) {
                int rc = tcp_part(h, c, culprit, err);
                if (rc != ADVANCE_DONE)
                    return rc;
                if (step->end)
                    step->end(h, c, c->t);
            }
            if (++c->t == c->nsteps)
                return ADVANCE_DONE;
            if (s)
                shm_step(s);
            c->state = COLL_WAITS;
            break;
        case COLL_WAITS:
            if (s && !shm_all_stepped(s))
                return ADVANCE_LATER;
            step->begin(h, c, c->t);
            c->state = COLL_WORKS;
            break;
        }
    }
}

/* ---- all ---- */

/* On shared hosts the last step has no work: until then others read a buffer in the
 * arena. */
static int prepare(struct hier *h, struct coll *c, struct ddp_err *err)
{
    choose_speakers(h, c);
    if (in_blocks(c))
        return hier_blocks_plan(h, c, err);
    size_t size = type_size(c->type), line = SHM_LINE / size;
    c->chunk = h->flat ? c->count : SHM_CHUNK / size;
    c->chunk = c->chunk ? c->chunk : line;
    c->nsteps = c->kind == COLL_BARRIER ? 1 : chunk_count(c);
    c->nsteps += h->shm ? (c->kind == COLL_BARRIER ? 1 : 2) : 0;
    bool apart = c->kind == COLL_REDUCE && (h->shm || c->root != h->layout->rank);
    size_t room = (c->chunk < c->count ? c->chunk : c->count) * size;
    if (apart && h->local < h->nchannels && !(c->scratch = malloc(room + 1)))
        return err_set(err, "no memory for a copy of %zu bytes", room);
    return 0;
}

int hier_advance(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err)
{
    *culprit = -1;
    if (coll_most(c, h->layout->size) == 0)
        c->kind = COLL_BARRIER; /* no data, but all ranks must come */
    if (c->chunk == 0 && prepare(h, c, err) < 0)
        return ADVANCE_ERROR;
    return advance(h, c, culprit, err);
}

struct hier *hier_create(const struct layout *l, struct tcp *tcp, struct shm *shm)
{
    struct hier *h = xcalloc(1, sizeof *h);
    size_t nhosts = (size_t)l->nhosts;
    *h = (struct hier){.layout = l,
                       .tcp = tcp,
                       .shm = shm,
                       .nchannels = l->size,
                       .host = l->members[l->rank].host,
                       .local = l->members[l->rank].local,
                       .flat = l->nhosts == l->size};
    for (int i = 0; i < l->nhosts; i++) {
        int n;
        layout_host(l, i, &n);
        h->nchannels = n < h->nchannels ? n : h->nchannels;
        h->most_local = n > h->most_local ? n : h->most_local;
    }
    h->speakers = xcalloc(nhosts, sizeof *h->speakers);
    if (h->local < h->nchannels) {
        h->team = xcalloc(nhosts, sizeof *h->team);
        for (int i = 0; i < l->nhosts; i++)
            h->team[i] = l->by_host[l->host_start[i] + h->local];
    }
    return h;
}

void hier_destroy(struct hier *h)
{
    if (!h)
        return;
    tcp_op_finish(&h->op);
    free(h->team);
    free(h->speakers);
    free(h);
}
