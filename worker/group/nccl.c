/* worker/group/nccl.c - collectives of CUDA memory, by libnccl
 *
 * The library is found at run time, so that ours also loads where there is none.
 *
 * A collective is given to NCCL by the call that starts it. All of a group go through one
 * stream, in the order they were started, so several may be in flight; an event behind
 * each says when it has ended, and until then NCCL is asked for errors. Messages have
 * communicators of their own (nccl_p2p.c).
 *
 * ncclCommInitRank(), ncclCommDestroy() and ncclCommAbort() may wait for ever: they are
 * called in threads of their own and given up at a deadline.
 *
 * What the caller has queued on a stream must have been done before it calls: as with
 * host memory, the buffer belongs to the request until it has ended.
 */
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/group/backend.h"
#include "worker/group/nccl_impl.h"
#include "worker/group/nccl_join.h"
#include "worker/group/reduce.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { END_MS = 5000 }; /* for communicators to be destroyed */

/* ---- life ---- */

/* Groups whose calls to NCCL had not returned when they were closed: what such a call may
 * still use is kept until the process ends. */
static struct nccl *_Atomic abandoned;

static void nccl_close(struct ddp_group *g)
{
    struct nccl *n = g->foreign;
    if (!n)
        return;
    g->foreign = NULL;
    int64_t deadline_ms = now_ms() + END_MS;
    bool any = n->coll.comm != NULL;
    struct offload *a = nccl_end(&n->coll.comm, g->broken);
    bool ended = nccl_p2p_close(n, g->broken, deadline_ms);
    if (any && !(a && offload_wait(a, deadline_ms - now_ms())))
        ended = false;
    offload_end(a);
    if (!ended) {
        n->next = atomic_exchange(&abandoned, n);
        return;
    }
    for (size_t i = 0; i < n->nevents; i++)
        cuda_api.event_destroy(n->events[i]);
    if (n->coll.stream)
        cuda_api.stream_destroy(n->coll.stream);
    free(n->events);
    free(n->idle);
    free(n);
}

static int device_of_rank(const struct ddp_group *g)
{
    const char *local = getenv("LOCAL_RANK");
    return local ? atoi(local) : g->layout.members[g->layout.rank].local;
}

static int nccl_open(struct ddp_group *g, struct ddp_err *err)
{
    struct nccl *n = g->foreign = xcalloc(1, sizeof *n);
    if (nccl_load(err) < 0 || cuda_open(device_of_rank(g), err) < 0 ||
        cuda_check(cuda_api.stream_create(&n->coll.stream, CUDA_NON_BLOCKING),
                   "cuStreamCreate", err) < 0)
        return -1;
    return nccl_join(g, cuda_use_context, cuda_context(), &n->coll.comm, err);
}

/* ---- collectives ---- */

/* Blocks that differ: one operation per rank, in one group. */
static int start_uneven(struct ddp_group *g, const struct nccl_queue *n, struct coll *c)
{
    int type = nccl_types[c->type], rc = 0, me = g->layout.rank;
    for (int r = 0; r < g->layout.size && rc == 0; r++) {
        struct range b = coll_block(c, r);
        if (b.n > 0 && c->kind == COLL_ALL_GATHER)
            rc = nccl_api.broadcast(r == me ? c->send : coll_at(c, c->recv, b.at),
                                    coll_at(c, c->recv, b.at), b.n, type, r, n->comm,
                                    n->stream);
        else if (b.n > 0)
            rc = nccl_api.reduce(coll_at(c, c->send, b.at), r == me ? c->recv : NULL, b.n,
                                 type, nccl_ops[c->op], r, n->comm, n->stream);
    }
    return rc;
}

static int start_moves(struct ddp_group *g, const struct nccl_queue *n, struct coll *c)
{
    int me = g->layout.rank, rc = 0;
    size_t size = type_size(c->type);
    struct range b;
    for (int r = 0; r < g->layout.size && rc == 0; r++) {
        if (coll_gives(c, me, r, &b) && b.n > 0)
            rc = nccl_api.send(coll_at(c, c->send, b.at), b.n * size, NCCL_BYTES, r,
                               n->comm, n->stream);
        if (rc == 0 && coll_takes(c, me, r, &b) && b.n > 0)
            rc = nccl_api.recv(coll_at(c, c->recv, b.at), b.n * size, NCCL_BYTES, r,
                               n->comm, n->stream);
    }
    return rc;
}

static int start_one(struct ddp_group *g, const struct nccl_queue *n, struct coll *c)
{
    int type = nccl_types[c->type], op = nccl_ops[c->op];
    switch (c->kind) {
    case COLL_BROADCAST:
        return nccl_api.broadcast(c->send, c->recv, c->count, type, c->root, n->comm,
                                  n->stream);
    case COLL_ALL_REDUCE:
        return nccl_api.all_reduce(c->send, c->recv, c->count, type, op, n->comm,
                                   n->stream);
    case COLL_REDUCE:
        return nccl_api.reduce(c->send, c->recv, c->count, type, op, c->root, n->comm,
                               n->stream);
    case COLL_ALL_GATHER:
        if (!c->starts)
            return nccl_api.all_gather(c->send, c->recv, c->count, type, n->comm,
                                       n->stream);
        return start_uneven(g, n, c);
    case COLL_REDUCE_SCATTER:
        if (!c->starts)
            return nccl_api.reduce_scatter(c->send, c->recv, c->count, type, op, n->comm,
                                           n->stream);
        return start_uneven(g, n, c);
    case COLL_GATHER:
    case COLL_SCATTER:
    case COLL_ALL_TO_ALL:
        return start_moves(g, n, c);
    case COLL_BARRIER:
        break;
    }
    return 0;
}

static int start(struct ddp_group *g, struct nccl *n, struct ddp_request *r,
                 struct ddp_err *err)
{
    int rc = nccl_api.begin();
    if (rc == 0)
        rc = start_one(g, &n->coll, &r->coll);
    int ended = nccl_api.end();
    TRY(nccl_check(rc ? rc : ended, coll_name(&r->coll).text, err));
    r->coll.state = COLL_WORKS;
    return nccl_mark(n, r, n->coll.stream, err);
}

/* All that NCCL has not been given yet; barriers and our own go another way. */
static int start_new(struct ddp_group *g, struct ddp_err *err)
{
    for (struct ddp_request *r = g->colls.first; r; r = r->next) {
        if (r->coll.state == COLL_NEW && !coll_stays_ours(&r->coll) &&
            start(g, g->foreign, r, err) < 0)
            return -1;
    }
    return 0;
}

static int nccl_advance(struct ddp_group *g, struct coll *c, int *culprit,
                        struct ddp_err *err)
{
    struct nccl *n = g->foreign;
    *culprit = -1;
    if (c->state == COLL_NEW && start_new(g, err) < 0)
        return ADVANCE_ERROR;
    int rc = nccl_passed(n, g->colls.first, n->coll.comm, err); /* `c` is the first's */
    return rc < 0 ? ADVANCE_ERROR : rc == 0 ? ADVANCE_LATER : ADVANCE_DONE;
}

static int nccl_progress(struct ddp_group *g, int *culprit, struct ddp_err *err)
{
    *culprit = -1;
    return start_new(g, err) < 0 ? -1 : nccl_p2p_progress(g, err);
}

const struct backend backend_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .advance = nccl_advance,
    .post = nccl_p2p_post,
    .progress = nccl_progress,
    .cancel = nccl_p2p_cancel,
    .watch = nccl_p2p_watch,
    .on_device = true,
    .sleepless = true,
};
