/* worker/group/hier.c - see hier.h
 *
 * A collective is a sequence of steps. In a step each rank does its share alone (reduce,
 * copy out), with an operation between hosts where there are several; a barrier of the
 * host separates steps. A rank copies in the data for step t + 1 after it has signalled
 * the barrier before it, so that no rank waits for the copy.
 *
 * all_reduce, step t: before it, copy chunk t to the staging buffer (or it is in the
 * arena); channels reduce their slice of chunk t-1 over the host, then over the hosts;
 * all ranks copy out the slices of chunk t-2.
 *
 * reduce, step t: likewise, over several hosts into scratch memory, and only the root
 * copies out.
 *
 * broadcast, step t: one rank per host forwards chunk t from host to host; the others
 * copy chunk t-1 from its staging buffer.
 *
 * all_gather and reduce_scatter: hier_blocks.c. A rank alone on its host has no staging
 * buffers and no barriers between the steps; its data are in its own buffer.
 *
 * While chunk t is copied in, others may still be in step t-1 and read chunks t-3 and
 * t-2, and t-1 is waiting: hence SHM_STAGES. Over several hosts the chunks depend on the
 * sizes alone, never on where a buffer is: they must be the same on all hosts.
 */
#include "worker/group/hier.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/reduce.h"

#include <stdlib.h>

struct tcp_op hier_op(struct hier *h, const struct coll *c, const int *team)
{
    return (struct tcp_op){.call = coll_call(c, h->layout->size),
                           .streams = &h->streams,
                           .team = team,
                           .n = h->layout->nhosts,
                           .me = h->host,
                           .root = h->layout->members[c->root].host,
                           .type = c->type,
                           .op = c->op};
}

static void start(struct hier *h, struct coll *c, void (*start_op)(struct tcp_op *o),
                  const int *team, void *data, size_t count)
{
    h->op = hier_op(h, c, team);
    h->op.data = (struct iovec){data, count * type_size(c->type)};
    start_op(&h->op);
    c->on_tcp = true;
}

static void choose_leaders(const struct hier *h, const struct coll *c)
{
    for (int i = 0, n; i < h->layout->nhosts; i++)
        h->leaders[i] = *layout_host(h->layout, i, &n);
    h->leaders[h->layout->members[c->root].host] = c->root;
}

/* ---- reductions ---- */

/* This rank's slice of chunk k; empty if it is no channel. */
static struct range my_slice(const struct hier *h, const struct coll *c, unsigned k)
{
    struct range r = coll_chunk(c, k);
    return hier_is_channel(h) ? range_slice(r, c->type, h->local, h->nchannels)
                              : (struct range){r.at + r.n, 0};
}

/* All but this rank's slice, which no other rank reads. */
static void reduce_give(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    struct range r = coll_chunk(c, t), of = my_slice(h, c, t);
    size_t behind = of.at + of.n;
    if (!s || shm_coll_direct(s, s->me))
        return;
    coll_copy(c, shm_stage(s, s->me, t), coll_at(c, c->send, r.at), of.at - r.at);
    coll_copy(c, shm_coll_staged(s, c, s->me, t, behind), coll_at(c, c->send, behind),
              r.at + r.n - behind);
}

/* Reduce this rank's slice of chunk k over the ranks of this host to `out`, and where the
 * others of a single host read it; then over the hosts. */
static void reduce_slice(struct hier *h, struct coll *c, unsigned k, void *out)
{
    struct shm *s = h->shm;
    struct range of = my_slice(h, c, k);
    const char *own = coll_at(c, c->send, of.at);
    for (int i = 0; s && i < s->n; i++)
        s->in[i] = i == s->me ? own : shm_coll_given(s, c, i, k, of.at);
    if (s && !h->tcp && c->kind == COLL_ALL_REDUCE) {
        s->out[0] = out;
        s->out[1] = shm_coll_staged(s, c, s->me, k, of.at);
        shm_coll_reduce(s, &s->showing, c, 2, of.n);
    } else if (s)
        reduce_many(&out, 1, s->in, s->n, of.n, c->type, c->op, h->tcp ? 0 : s->n);
    else if (out != own)
        coll_copy(c, out, own, of.n);
    if (h->tcp)
        start(h, c, c->kind == COLL_REDUCE ? tcp_reduce : tcp_all_reduce, h->team, out,
              of.n);
}

/* Copy chunk k from the channels, of each its slice; that of channel `but` is there. */
static void collect(const struct hier *h, const struct coll *c, unsigned k, int but)
{
    bool in_arena = c->kind == COLL_ALL_REDUCE && c->lead == 0;
    for (int i = 0; i < h->nchannels; i++) {
        struct range of = range_slice(coll_chunk(c, k), c->type, i, h->nchannels);
        if (i != but)
            coll_copy(c, coll_at(c, c->recv, of.at),
                      in_arena ? coll_at(c, shm_coll_direct(h->shm, i), of.at)
                               : shm_coll_staged(h->shm, c, i, k, of.at),
                      of.n);
    }
}

/* The result of a slice is made in the receiver's buffer if it is this rank's; else in
 * the channel's staging buffer, from which the root copies it; of a reduce between hosts
 * in scratch memory. */
static void reduce_begin(struct hier *h, struct coll *c, unsigned t)
{
    unsigned k = t - c->lead;
    bool takes = c->kind == COLL_ALL_REDUCE || c->root == h->layout->rank;
    if (h->shm && takes && t > c->lead)
        collect(h, c, k - 1, c->scratch ? -1 : h->local);
    if (!hier_works(h, c, t))
        return;
    size_t at = my_slice(h, c, k).at;
    reduce_slice(h, c, k,
                 c->scratch ? c->scratch
                 : takes    ? coll_at(c, c->recv, at)
                            : shm_coll_staged(h->shm, c, h->local, k, at));
}

/* After the operation between hosts: shows others of the host the result. */
static void reduce_end(struct hier *h, struct coll *c, unsigned t)
{
    struct range of = my_slice(h, c, t - c->lead);
    char *result = c->scratch ? c->scratch : coll_at(c, c->recv, of.at);
    if (c->kind == COLL_REDUCE && h->layout->members[c->root].host != h->host)
        return;
    reduce_finish(result, of.n, c->type, c->op, h->layout->size);
    if (h->shm && (c->scratch || c->lead > 0))
        coll_copy(c, shm_coll_staged(h->shm, c, h->local, t - 1, of.at), result, of.n);
}

/* ---- broadcast, barrier ---- */

static bool leads(const struct hier *h)
{
    return h->leaders[h->host] == h->layout->rank;
}

/* Shows others of the host chunk t, which this rank has. */
static void broadcast_end(struct hier *h, struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t);
    if (h->shm && !shm_coll_direct(h->shm, h->local))
        coll_copy(c, shm_stage(h->shm, h->local, t), coll_at(c, c->recv, r.at), r.n);
}

static void broadcast_give(struct hier *h, struct coll *c, unsigned t)
{
    if (!h->tcp && leads(h))
        broadcast_end(h, c, t);
}

static void broadcast_begin(struct hier *h, struct coll *c, unsigned t)
{
    int leader = h->layout->members[h->leaders[h->host]].local;
    if (leads(h) && h->tcp && t < c->nchunks) {
        struct range r = coll_chunk(c, t);
        start(h, c, tcp_broadcast, h->leaders, coll_at(c, c->recv, r.at), r.n);
    } else if (!leads(h) && t > 0) {
        struct range r = coll_chunk(c, t - 1);
        coll_copy(c, coll_at(c, c->recv, r.at),
                  shm_coll_given(h->shm, c, leader, t - 1, r.at), r.n);
    }
}

static void barrier_begin(struct hier *h, struct coll *c, unsigned t)
{
    if (t == 0 && leads(h))
        start(h, c, tcp_all_reduce, h->leaders, NULL, 0);
}

/* ---- all ---- */

static const struct coll_step *step_of(const struct hier *h, const struct coll *c,
                                       bool in_arena)
{
    static const struct coll_step steps[] = {
        [COLL_BARRIER] = {NULL, barrier_begin, NULL},
        [COLL_BROADCAST] = {broadcast_give, broadcast_begin, broadcast_end},
        [COLL_ALL_REDUCE] = {reduce_give, reduce_begin, reduce_end},
        [COLL_REDUCE] = {reduce_give, reduce_begin, reduce_end},
    };
    if (coll_most(c, h->layout->size) == 0) /* no data, but all ranks must come */
        return &steps[COLL_BARRIER];
    if (c->kind == COLL_ALL_GATHER)
        return &hier_blocks_gather;
    if (c->kind == COLL_REDUCE_SCATTER)
        return h->tcp ? &hier_blocks_scatter : &hier_blocks_scatter_here;
    return c->kind == COLL_ALL_REDUCE && in_arena && !h->tcp ? &shm_coll_arena
                                                             : &steps[c->kind];
}

/* Elements of a chunk. Within one host a buffer in the arena is a chunk. */
static size_t chunk_elements(const struct hier *h, const struct coll *c, bool in_arena)
{
    size_t most = coll_most(c, h->layout->size), size = type_size(c->type), chunk = most;
    bool in_blocks = c->kind == COLL_ALL_GATHER || c->kind == COLL_REDUCE_SCATTER;
    if (h->tcp && h->most_local > 1)
        chunk = in_blocks ? hier_blocks_chunk(h, c) : SHM_CHUNK / size;
    else if (!h->tcp && (!in_arena || c->kind == COLL_REDUCE))
        chunk = shm_coll_chunk(h->shm, c);
    chunk = chunk < most ? chunk : most;
    return chunk ? chunk : SHM_LINE / size;
}

/* The scratch memory of reductions over several hosts. */
static int make_scratch(const struct hier *h, struct coll *c, struct ddp_err *err)
{
    size_t n = c->chunk;
    bool apart = c->kind == COLL_REDUCE && (h->shm || c->root != h->layout->rank);
    if (c->kind == COLL_REDUCE_SCATTER)
        n = hier_blocks_scratch(h, c);
    if (!h->tcp || !hier_is_channel(h) || (!apart && c->kind != COLL_REDUCE_SCATTER))
        return 0;
    c->scratch = malloc(n * type_size(c->type));
    return c->scratch ? 0
                      : err_set(err, "no memory for a copy of %zu bytes",
                                n * type_size(c->type));
}

/* A chunk is copied out one step after it is complete, and a buffer that others read is
 * returned when all have read it. */
static int plan(struct hier *h, struct coll *c, struct ddp_err *err)
{
    const struct shm *s = h->shm;
    size_t most = coll_most(c, h->layout->size);
    int ndirect = 0;
    choose_leaders(h, c);
    for (int i = 0; s && i < s->n; i++)
        ndirect += shm_coll_direct(s, i) != NULL;
    bool reduces = c->kind == COLL_ALL_REDUCE || c->kind == COLL_REDUCE;
    bool all = s && ndirect == s->n, in_arena = all;
    if (s && c->kind == COLL_BROADCAST)
        in_arena = shm_coll_direct(s, h->layout->members[c->root].local) != NULL;
    c->chunk = chunk_elements(h, c, in_arena);
    c->step = step_of(h, c, in_arena);
    c->lead = s && !(all && reduces && (!h->tcp || c->kind == COLL_ALL_REDUCE)) ? 1 : 0;
    c->nchunks = most ? (unsigned)((most + c->chunk - 1) / c->chunk) : 1;
    c->nsteps = c->nchunks;
    if (s && h->tcp)
        c->nsteps += most ? 2 : 1;
    else if (s)
        c->nsteps += 1 + (reduces ? c->lead : ndirect > 0);
    return make_scratch(h, c, err);
}

static void give(struct hier *h, struct coll *c)
{
    if (c->step->give)
        c->step->give(h, c, c->t);
}

int hier_advance(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err)
{
    struct shm *s = h->shm;
    int rc;
    *culprit = -1;
    for (;;) {
        switch (c->state) {
        case COLL_NEW:
        case COLL_ANNOUNCED:
            rc = shm_coll_meet(s, c, !h->tcp, err);
            if (rc != ADVANCE_DONE)
                return rc;
            if (!h->tcp && shm_coll_finish_short(s, c))
                return ADVANCE_DONE;
            if (plan(h, c, err) < 0)
                return ADVANCE_ERROR;
            give(h, c);
            c->state = COLL_WORKS;
            break;
        case COLL_WORKS:
            if (!c->on_tcp)
                c->step->begin(h, c, c->t);
            if (c->on_tcp) {
                rc = tcp_op_advance(h->tcp, &h->op, culprit, err);
                if (rc != ADVANCE_DONE)
                    return rc;
                tcp_op_finish(&h->op);
                c->on_tcp = false;
                if (c->step->end)
                    c->step->end(h, c, c->t);
            }
            if (++c->t == c->nsteps)
                return ADVANCE_DONE;
            if (s)
                shm_step(s);
            give(h, c);
            c->state = COLL_WAITS;
            break;
        case COLL_WAITS:
            if (s && !shm_all_stepped(s))
                return ADVANCE_LATER;
            c->state = COLL_WORKS;
            break;
        }
    }
}

struct hier *hier_create(const struct layout *l, struct tcp *tcp, struct shm *shm,
                         struct ddp_err *err)
{
    struct tcp_streams streams = {.n = 1};
    if (tcp && tcp_streams_init(&streams, err) < 0)
        return NULL;
    struct hier *h = xcalloc(1, sizeof *h);
    size_t nhosts = (size_t)l->nhosts;
    *h = (struct hier){.layout = l,
                       .tcp = tcp,
                       .shm = shm,
                       .streams = streams,
                       .nchannels = l->size,
                       .host = l->members[l->rank].host,
                       .local = l->members[l->rank].local};
    for (int i = 0; i < l->nhosts; i++) {
        int n;
        layout_host(l, i, &n);
        h->nchannels = n < h->nchannels ? n : h->nchannels;
        h->most_local = n > h->most_local ? n : h->most_local;
    }
    h->leaders = xcalloc(nhosts, sizeof *h->leaders);
    if (hier_is_channel(h)) {
        h->team = xcalloc(nhosts, sizeof *h->team);
        for (int i = 0, n; i < l->nhosts; i++)
            h->team[i] = layout_host(l, i, &n)[h->local];
    }
    return h;
}

void hier_destroy(struct hier *h)
{
    if (!h)
        return;
    tcp_op_finish(&h->op);
    free(h->team);
    free(h->leaders);
    free(h);
}
