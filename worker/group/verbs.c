/* worker/group/verbs.c - the public calls: arguments are checked here, once */
#include "worker/group/group.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/reduce.h"

#include <stdlib.h>
#include <string.h>

static int check(struct ddp_group *g, const struct coll *c, struct ddp_err *err)
{
    if (g->broken) {
        if (err)
            *err = g->why;
        return -1;
    }
    if ((unsigned)c->type > DDP_U8 || (unsigned)c->op > DDP_AVG)
        return err_set(err, "no such element type or operation (%d, %d)", (int)c->type,
                       (int)c->op);
    if (c->root < 0 || c->root >= g->layout.size)
        return err_set(err, "root %d in a group of %d", c->root, g->layout.size);
    if (c->count > 0 && (!c->send || !c->recv))
        return err_set(err, "the buffer of %zu elements is NULL", c->count);
    if (c->count > SIZE_MAX / 8 / (size_t)g->layout.size)
        return err_set(err, "%zu elements are more than memory has", c->count);
    return 0;
}

/* A group of one: the result is the contribution. */
static void alone(const struct coll *c)
{
    if (c->recv != c->send && c->count > 0)
        memmove(c->recv, c->send, coll_bytes(c));
}

static void start(struct ddp_group *g, struct ddp_request *r)
{
    r->group = g;
    r->coll.number = ++g->number;
    if (g->layout.size == 1) {
        alone(&r->coll);
        r->ended = true;
        return;
    }
    if (g->last)
        g->last->next = r;
    else
        g->first = r;
    g->last = r;
}

static int run(struct ddp_group *g, const struct coll *c, struct ddp_err *err)
{
    if (check(g, c, err) < 0)
        return -1;
    struct ddp_request r = {.kind = REQUEST_COLL, .coll = *c};
    start(g, &r);
    return r.ended ? 0 : group_wait(g, &r.ended, err);
}

int ddp_barrier(struct ddp_group *g, struct ddp_err *err)
{
    return run(g, &(struct coll){.kind = COLL_BARRIER, .type = DDP_U8}, err);
}

int ddp_broadcast(struct ddp_group *g, void *buf, size_t count, enum ddp_type type,
                  int root, struct ddp_err *err)
{
    struct coll c = {.kind = COLL_BROADCAST,
                     .send = buf,
                     .recv = buf,
                     .count = count,
                     .type = type,
                     .root = root};
    return run(g, &c, err);
}

int ddp_all_reduce(struct ddp_group *g, void *buf, size_t count, enum ddp_type type,
                   enum ddp_op op, struct ddp_err *err)
{
    struct coll c = {.kind = COLL_ALL_REDUCE,
                     .send = buf,
                     .recv = buf,
                     .count = count,
                     .type = type,
                     .op = op};
    return run(g, &c, err);
}

int ddp_all_gather(struct ddp_group *g, const void *send, void *recv, size_t count,
                   enum ddp_type type, struct ddp_err *err)
{
    struct coll c = {.kind = COLL_ALL_GATHER,
                     .send = send,
                     .recv = recv,
                     .count = count,
                     .type = type};
    return run(g, &c, err);
}

int ddp_reduce_scatter(struct ddp_group *g, const void *send, void *recv, size_t count,
                       enum ddp_type type, enum ddp_op op, struct ddp_err *err)
{
    struct coll c = {.kind = COLL_REDUCE_SCATTER,
                     .send = send,
                     .recv = recv,
                     .count = count,
                     .type = type,
                     .op = op};
    return run(g, &c, err);
}

struct ddp_request *ddp_iall_reduce(struct ddp_group *g, void *buf, size_t count,
                                    enum ddp_type type, enum ddp_op op,
                                    struct ddp_err *err)
{
    struct coll c = {.kind = COLL_ALL_REDUCE,
                     .send = buf,
                     .recv = buf,
                     .count = count,
                     .type = type,
                     .op = op};
    if (check(g, &c, err) < 0)
        return NULL;
    struct ddp_request *r = xcalloc(1, sizeof *r);
    *r = (struct ddp_request){.kind = REQUEST_COLL, .coll = c};
    start(g, r);
    struct ddp_err unwanted;
    group_progress(g, &unwanted); /* a failure is told by ddp_test() or ddp_wait() */
    return r;
}

int ddp_test(struct ddp_request *r, int *done, struct ddp_err *err)
{
    struct ddp_err why;
    int rc = r->ended ? 0 : group_progress(r->group, &why);
    *done = r->ended;
    if (rc < 0 && !r->ended && err)
        *err = why;
    if (r->ended || rc < 0) {
        rc = r->ended ? 0 : -1;
        free(r);
        return rc;
    }
    return 0;
}

int ddp_wait(struct ddp_request *r, struct ddp_err *err)
{
    int rc = r->ended ? 0 : group_wait(r->group, &r->ended, err);
    free(r);
    return rc;
}
