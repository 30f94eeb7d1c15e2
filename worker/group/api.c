/* worker/group/api.c - the public collectives, and the checks of their arguments
 *
 * One function describes each collective for its blocking and its non-blocking form.
 */
#include "common/err.h"
#include "worker/group/backend.h"
#include "worker/group/reduce.h"

#include <string.h>

static struct coll coll_of(enum coll_kind kind, const void *send, void *recv,
                           size_t count, enum ddp_type type, enum ddp_op op, int root)
{
    return (struct coll){.kind = kind,
                         .send = send,
                         .recv = recv,
                         .count = count,
                         .type = type,
                         .op = op,
                         .root = root};
}

static struct coll barrier(void)
{
    return coll_of(COLL_BARRIER, NULL, NULL, 0, DDP_U8, DDP_SUM, 0);
}

/* ---- arguments ---- */

/* Checks a rank's own block, which is copied; between ranks the message sizes are
 * compared. */
static int check_own_block(const struct ddp_group *g, const struct coll *c,
                           struct ddp_err *err)
{
    int me = g->layout.rank;
    struct range gives, takes;
    bool both = coll_by_messages(c->kind) && coll_gives(c, me, me, &gives) &&
                coll_takes(c, me, me, &takes);
    return !both || gives.n == takes.n
               ? 0
               : err_set(err, "rank %d gives itself %zu elements and takes %zu", me,
                         gives.n, takes.n);
}

static int check(struct ddp_group *g, const struct coll *c, struct ddp_err *err)
{
    int me = g->layout.rank, size = g->layout.size;
    TRY(group_check_failures(g, err));
    if (!reduce_known(c->type, c->op))
        return err_set(err, "no such element type or operation (%d, %d)", (int)c->type,
                       (int)c->op);
    if (!reduce_sensible(c->type, c->op))
        return err_set(err, "'%s' is for integers, not for %s", op_name(c->op),
                       type_name(c->type));
    if (c->listless)
        return err_set(err, "the list of counts is NULL");
    if (c->root < 0 || c->root >= size)
        return err_set(err, "root %d in a group of %d", c->root, size);
    if (coll_most(c, size) > SIZE_MAX / 8 / (size_t)size)
        return err_set(err, "%zu elements are more than memory has", coll_most(c, size));
    TRY(check_own_block(g, c, err));
    size_t send = coll_sends(c, me, size), recv = coll_receives(c, me, size);
    if ((send > 0 && !c->send) || (recv > 0 && !c->recv))
        return err_set(err, "the buffer of %zu elements is NULL",
                       send > 0 && !c->send ? send : recv);
    if (coll_stays_ours(c))
        return 0;
    if (g->backend->on_device && coll_reduces(c->kind) && c->op >= DDP_BAND)
        return err_set(err, "'%s' has no '%s'", g->backend->name, op_name(c->op));
    if (send > 0 && group_check_memory(g, c->send, err) < 0)
        return -1;
    return recv > 0 && c->recv != c->send ? group_check_memory(g, c->recv, err) : 0;
}

/* ---- going ---- */

static struct ddp_request *set_off(struct ddp_group *g, struct coll c,
                                   struct ddp_err *err)
{
    if (check(g, &c, err) < 0) {
        coll_finish(&c);
        return NULL;
    }
    struct ddp_request *r = request_hand_out(g, &c);
    r->ended = g->layout.size == 1 && (coll_stays_ours(&c) || !g->foreign);
    group_enter(g, r);
    if (r->ended && c.recv != c.send && c.count > 0) /* alone: what it has contributed */
        memmove(c.recv, c.send, c.count * type_size(c.type));
    return request_set_off(g, r);
}

int ddp_monitored_barrier(struct ddp_group *g, int64_t timeout_ms, struct ddp_err *err)
{
    struct patience p = {.timeout_ms = timeout_ms};
    return request_finish(set_off(g, barrier(), err), &p, err);
}

int group_share(struct ddp_group *g, enum coll_kind kind, const void *send, void *recv,
                size_t bytes, struct ddp_err *err)
{
    struct coll c = coll_of(kind, send, recv, bytes, DDP_U8, DDP_SUM, 0);
    c.internal = true;
    return request_finish(set_off(g, c, err), NULL, err);
}

/* ---- the verbs ---- */

/* ddp_NAME(), which waits, and ddp_iNAME(), which does not. */
#define VERB(name, of, ...)                                                 \
    int ddp_##name(struct ddp_group *g, ##__VA_ARGS__, struct ddp_err *err) \
    {                                                                       \
        return request_finish(set_off(g, of, err), NULL, err);              \
    }                                                                       \
    struct ddp_request *ddp_i##name(struct ddp_group *g, ##__VA_ARGS__,     \
                                    struct ddp_err *err)                    \
    {                                                                       \
        return set_off(g, of, err);                                         \
    }

VERB(barrier, barrier())
VERB(broadcast, coll_of(COLL_BROADCAST, buf, buf, count, type, DDP_SUM, root), void *buf,
     size_t count, enum ddp_type type, int root)
VERB(reduce, coll_of(COLL_REDUCE, send, recv, count, type, op, root), const void *send,
     void *recv, size_t count, enum ddp_type type, enum ddp_op op, int root)
VERB(all_reduce, coll_of(COLL_ALL_REDUCE, buf, buf, count, type, op, 0), void *buf,
     size_t count, enum ddp_type type, enum ddp_op op)
VERB(gather, coll_of(COLL_GATHER, send, recv, count, type, DDP_SUM, root),
     const void *send, void *recv, size_t count, enum ddp_type type, int root)
VERB(scatter, coll_of(COLL_SCATTER, send, recv, count, type, DDP_SUM, root),
     const void *send, void *recv, size_t count, enum ddp_type type, int root)
VERB(all_gather, coll_of(COLL_ALL_GATHER, send, recv, count, type, DDP_SUM, 0),
     const void *send, void *recv, size_t count, enum ddp_type type)
VERB(reduce_scatter, coll_of(COLL_REDUCE_SCATTER, send, recv, count, type, op, 0),
     const void *send, void *recv, size_t count, enum ddp_type type, enum ddp_op op)
VERB(all_to_all, coll_of(COLL_ALL_TO_ALL, send, recv, count, type, DDP_SUM, 0),
     const void *send, void *recv, size_t count, enum ddp_type type)

/* Blocks of different sizes: `counts` where there is one list of them, on the root where
 * there is one; `counts_in` of all_to_all's recv. */
static struct coll blocks_of(const struct ddp_group *g, struct coll c,
                             const size_t *counts, const size_t *counts_in)
{
    bool rooted = c.kind == COLL_GATHER || c.kind == COLL_SCATTER;
    bool listed = !rooted || g->layout.rank == c.root;
    c.listless = listed && (!counts || (c.kind == COLL_ALL_TO_ALL && !counts_in));
    if (!listed)
        counts = NULL;
    if (!rooted)
        c.count = counts ? counts[g->layout.rank] : 0;
    c.starts = counts ? coll_starts(counts, g->layout.size) : NULL;
    c.starts_in = counts_in ? coll_starts(counts_in, g->layout.size) : NULL;
    return c;
}

VERB(gatherv,
     blocks_of(g, coll_of(COLL_GATHER, send, recv, count, type, DDP_SUM, root), counts,
               NULL),
     const void *send, size_t count, void *recv, const size_t *counts, enum ddp_type type,
     int root)
VERB(scatterv,
     blocks_of(g, coll_of(COLL_SCATTER, send, recv, count, type, DDP_SUM, root), counts,
               NULL),
     const void *send, const size_t *counts, void *recv, size_t count, enum ddp_type type,
     int root)
VERB(all_gatherv,
     blocks_of(g, coll_of(COLL_ALL_GATHER, send, recv, 0, type, DDP_SUM, 0), counts,
               NULL),
     const void *send, void *recv, const size_t *counts, enum ddp_type type)
VERB(reduce_scatterv,
     blocks_of(g, coll_of(COLL_REDUCE_SCATTER, send, recv, 0, type, op, 0), counts, NULL),
     const void *send, void *recv, const size_t *counts, enum ddp_type type,
     enum ddp_op op)
VERB(all_to_allv,
     blocks_of(g, coll_of(COLL_ALL_TO_ALL, send, recv, 0, type, DDP_SUM, 0), send_counts,
               recv_counts),
     const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts,
     enum ddp_type type)
