/* worker/group/api.c - the public collectives, and the checks of their arguments
 *
 * One function describes each collective for its blocking and its non-blocking form.
 */
#include "common/err.h"
#include "common/mem.h"
#include "worker/group/backend.h"
#include "worker/group/reduce.h"
#include "worker/group/request.h"

#include <stdlib.h>
#include <string.h>

/* ---- arguments ---- */

/* The blocks that this rank reads from `send`, or writes to `recv`, in all. */
static size_t all_blocks(const struct coll *c, const size_t *starts, int size)
{
    return starts ? starts[size] : c->count * (size_t)size;
}

/* Elements behind the two pointers on this rank. */
static void extents(const struct ddp_group *g, const struct coll *c, size_t *send,
                    size_t *recv)
{
    int me = g->layout.rank, size = g->layout.size;
    bool root = me == c->root;
    size_t all = all_blocks(c, c->starts, size), mine = coll_block(c, me).n;
    *send = *recv = c->count;
    switch (c->kind) {
    case COLL_BARRIER:
    case COLL_BROADCAST:
    case COLL_ALL_REDUCE:
        break;
    case COLL_REDUCE:
        *recv = root ? c->count : 0;
        break;
    case COLL_ALL_GATHER:
        *send = mine;
        *recv = all;
        break;
    case COLL_REDUCE_SCATTER:
        *send = all;
        *recv = mine;
        break;
    case COLL_GATHER:
        *recv = root ? all : 0;
        break;
    case COLL_SCATTER:
        *send = root ? all : 0;
        break;
    case COLL_ALL_TO_ALL:
        *send = all;
        *recv = all_blocks(c, c->starts_in, size);
        break;
    }
}

/* Checks a rank's own block, which is copied; between ranks the message sizes are
 * compared. */
static int check_own_block(const struct ddp_group *g, const struct coll *c,
                           struct ddp_err *err)
{
    int me = g->layout.rank;
    size_t gives = coll_block(c, me).n, takes = c->count;
    if (c->kind == COLL_ALL_TO_ALL && c->starts_in)
        takes = c->starts_in[me + 1] - c->starts_in[me];
    if (c->kind == COLL_GATHER) {
        takes = gives;
        gives = c->count;
    }
    bool both = c->kind == COLL_ALL_TO_ALL ||
                (me == c->root && (c->kind == COLL_GATHER || c->kind == COLL_SCATTER));
    return !both || gives == takes
               ? 0
               : err_set(err, "rank %d gives itself %zu elements and takes %zu", me,
                         gives, takes);
}

static int check(struct ddp_group *g, const struct coll *c, struct ddp_err *err)
{
    size_t send, recv;
    if (group_check_failures(g, err) < 0)
        return -1;
    if (!reduce_known(c->type, c->op))
        return err_set(err, "no such element type or operation (%d, %d)", (int)c->type,
                       (int)c->op);
    if (!reduce_sensible(c->type, c->op))
        return err_set(err, "'%s' is for integers, not for %s", op_name(c->op),
                       type_name(c->type));
    if (c->root < 0 || c->root >= g->layout.size)
        return err_set(err, "root %d in a group of %d", c->root, g->layout.size);
    if (coll_most(c, g->layout.size) > SIZE_MAX / 8 / (size_t)g->layout.size)
        return err_set(err, "%zu elements are more than memory has",
                       coll_most(c, g->layout.size));
    if (check_own_block(g, c, err) < 0)
        return -1;
    extents(g, c, &send, &recv);
    if ((send > 0 && !c->send) || (recv > 0 && !c->recv))
        return err_set(err, "the buffer of %zu elements is NULL",
                       send > 0 && !c->send ? send : recv);
    if (c->internal || c->kind == COLL_BARRIER)
        return 0;
    if (g->backend->on_device && coll_reduces(c->kind) && c->op >= DDP_BAND)
        return err_set(err, "'%s' has no '%s'", g->backend->name, op_name(c->op));
    if (send > 0 && group_check_memory(g, c->send, err) < 0)
        return -1;
    return recv > 0 && c->recv != c->send ? group_check_memory(g, c->recv, err) : 0;
}

/* ---- going ---- */

/* A group of one: the result is the contribution. */
static bool is_alone(const struct ddp_group *g, const struct coll *c)
{
    return g->layout.size == 1 && (c->internal || c->kind == COLL_BARRIER || !g->foreign);
}

static void alone(const struct coll *c)
{
    if (c->recv != c->send && c->count > 0)
        memmove(c->recv, c->send, coll_bytes(c));
}

static void start(struct ddp_group *g, struct ddp_request *r)
{
    r->group = g;
    r->ended = is_alone(g, &r->coll);
    group_enter(g, r);
    if (r->ended)
        alone(&r->coll);
}

static int run(struct ddp_group *g, struct coll c, struct ddp_err *err)
{
    struct ddp_request r = {.kind = REQUEST_COLL, .coll = c};
    int rc = check(g, &c, err);
    if (rc == 0)
        start(g, &r);
    if (rc == 0 && !r.ended)
        rc = group_wait(g, &r.ended, err);
    if (rc < 0 || is_alone(g, &c))
        coll_finish(&r.coll);
    return rc;
}

static struct ddp_request *set_off(struct ddp_group *g, struct coll c,
                                   struct ddp_err *err)
{
    if (check(g, &c, err) < 0) {
        coll_finish(&c);
        return NULL;
    }
    struct ddp_request r = {.kind = REQUEST_COLL, .group = g, .coll = c}, *mine;
    mine = request_hand_out(g, &r);
    start(g, mine);
    return request_set_off(g, mine);
}

int ddp_monitored_barrier(struct ddp_group *g, int64_t timeout_ms, struct ddp_err *err)
{
    struct ddp_request r = {.kind = REQUEST_COLL,
                            .coll = {.kind = COLL_BARRIER, .type = DDP_U8}};
    if (check(g, &r.coll, err) < 0)
        return -1;
    start(g, &r);
    struct patience p = {.timeout_ms = timeout_ms, .monitored = true};
    int rc = r.ended ? 0 : group_wait_patiently(g, &r.ended, &p, err);
    if (rc < 0)
        coll_finish(&r.coll);
    return rc;
}

int group_share(struct ddp_group *g, void *data, size_t bytes, struct ddp_err *err)
{
    struct coll c = {.kind = COLL_BROADCAST,
                     .internal = true,
                     .send = data,
                     .recv = data,
                     .count = bytes,
                     .type = DDP_U8};
    return run(g, c, err);
}

int group_share_all(struct ddp_group *g, const void *send, void *recv, size_t bytes,
                    struct ddp_err *err)
{
    struct coll c = {.kind = COLL_ALL_GATHER,
                     .internal = true,
                     .send = send,
                     .recv = recv,
                     .count = bytes,
                     .type = DDP_U8};
    return run(g, c, err);
}

/* ---- the verbs ---- */

/* ddp_NAME(), which waits, and ddp_iNAME(), which does not. */
#define VERB(name, of, ...)                                               \
    int ddp_##name(struct ddp_group *g, __VA_ARGS__, struct ddp_err *err) \
    {                                                                     \
        return run(g, of, err);                                           \
    }                                                                     \
    struct ddp_request *ddp_i##name(struct ddp_group *g, __VA_ARGS__,     \
                                    struct ddp_err *err)                  \
    {                                                                     \
        return set_off(g, of, err);                                       \
    }

static size_t *starts_of(const struct ddp_group *g, const size_t *counts)
{
    return counts ? coll_starts(counts, g->layout.size) : NULL;
}

static struct coll barrier_of(void)
{
    return (struct coll){.kind = COLL_BARRIER, .type = DDP_U8};
}

int ddp_barrier(struct ddp_group *g, struct ddp_err *err)
{
    return run(g, barrier_of(), err);
}

struct ddp_request *ddp_ibarrier(struct ddp_group *g, struct ddp_err *err)
{
    return set_off(g, barrier_of(), err);
}

static struct coll broadcast_of(void *buf, size_t count, enum ddp_type type, int root)
{
    return (struct coll){.kind = COLL_BROADCAST,
                         .send = buf,
                         .recv = buf,
                         .count = count,
                         .type = type,
                         .root = root};
}

VERB(broadcast, broadcast_of(buf, count, type, root), void *buf, size_t count,
     enum ddp_type type, int root)

static struct coll reduce_of(const void *send, void *recv, size_t count,
                             enum ddp_type type, enum ddp_op op, int root)
{
    return (struct coll){.kind = COLL_REDUCE,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .type = type,
                         .op = op,
                         .root = root};
}

VERB(reduce, reduce_of(send, recv, count, type, op, root), const void *send, void *recv,
     size_t count, enum ddp_type type, enum ddp_op op, int root)

static struct coll all_reduce_of(void *buf, size_t count, enum ddp_type type,
                                 enum ddp_op op)
{
    return (struct coll){.kind = COLL_ALL_REDUCE,
                         .send = buf,
                         .recv = buf,
                         .count = count,
                         .type = type,
                         .op = op};
}

VERB(all_reduce, all_reduce_of(buf, count, type, op), void *buf, size_t count,
     enum ddp_type type, enum ddp_op op)

static struct coll gather_of(const struct ddp_group *g, const void *send, size_t count,
                             void *recv, const size_t *counts, enum ddp_type type,
                             int root)
{
    return (struct coll){.kind = COLL_GATHER,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .starts = g->layout.rank == root ? starts_of(g, counts) : NULL,
                         .type = type,
                         .root = root};
}

VERB(gather, gather_of(g, send, count, recv, NULL, type, root), const void *send,
     void *recv, size_t count, enum ddp_type type, int root)
VERB(gatherv, gather_of(g, send, count, recv, counts, type, root), const void *send,
     size_t count, void *recv, const size_t *counts, enum ddp_type type, int root)

static struct coll scatter_of(const struct ddp_group *g, const void *send,
                              const size_t *counts, void *recv, size_t count,
                              enum ddp_type type, int root)
{
    return (struct coll){.kind = COLL_SCATTER,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .starts = g->layout.rank == root ? starts_of(g, counts) : NULL,
                         .type = type,
                         .root = root};
}

VERB(scatter, scatter_of(g, send, NULL, recv, count, type, root), const void *send,
     void *recv, size_t count, enum ddp_type type, int root)
VERB(scatterv, scatter_of(g, send, counts, recv, count, type, root), const void *send,
     const size_t *counts, void *recv, size_t count, enum ddp_type type, int root)

static struct coll all_gather_of(const struct ddp_group *g, const void *send, void *recv,
                                 size_t count, const size_t *counts, enum ddp_type type)
{
    return (struct coll){.kind = COLL_ALL_GATHER,
                         .send = send,
                         .recv = recv,
                         .count = counts ? counts[g->layout.rank] : count,
                         .starts = starts_of(g, counts),
                         .type = type};
}

VERB(all_gather, all_gather_of(g, send, recv, count, NULL, type), const void *send,
     void *recv, size_t count, enum ddp_type type)
VERB(all_gatherv, all_gather_of(g, send, recv, 0, counts, type), const void *send,
     void *recv, const size_t *counts, enum ddp_type type)

static struct coll reduce_scatter_of(const struct ddp_group *g, const void *send,
                                     void *recv, size_t count, const size_t *counts,
                                     enum ddp_type type, enum ddp_op op)
{
    return (struct coll){.kind = COLL_REDUCE_SCATTER,
                         .send = send,
                         .recv = recv,
                         .count = counts ? counts[g->layout.rank] : count,
                         .starts = starts_of(g, counts),
                         .type = type,
                         .op = op};
}

VERB(reduce_scatter, reduce_scatter_of(g, send, recv, count, NULL, type, op),
     const void *send, void *recv, size_t count, enum ddp_type type, enum ddp_op op)
VERB(reduce_scatterv, reduce_scatter_of(g, send, recv, 0, counts, type, op),
     const void *send, void *recv, const size_t *counts, enum ddp_type type,
     enum ddp_op op)

static struct coll all_to_all_of(const struct ddp_group *g, const void *send,
                                 const size_t *send_counts, void *recv,
                                 const size_t *recv_counts, size_t count,
                                 enum ddp_type type)
{
    return (struct coll){.kind = COLL_ALL_TO_ALL,
                         .send = send,
                         .recv = recv,
                         .count = send_counts ? send_counts[g->layout.rank] : count,
                         .starts = starts_of(g, send_counts),
                         .starts_in = starts_of(g, recv_counts),
                         .type = type};
}

VERB(all_to_all, all_to_all_of(g, send, NULL, recv, NULL, count, type), const void *send,
     void *recv, size_t count, enum ddp_type type)
VERB(all_to_allv, all_to_all_of(g, send, send_counts, recv, recv_counts, 0, type),
     const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts,
     enum ddp_type type)
