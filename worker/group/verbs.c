/* worker/group/verbs.c - the public calls: arguments are checked here, once */
#include "worker/group/messages.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/reduce.h"

#include <stdlib.h>
#include <string.h>

static int check(struct ddp_group *g, const struct coll *c, struct ddp_err *err)
{
    if (group_hear(g, err) < 0)
        return -1;
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
    if (r.ended)
        return 0;
    int rc = group_wait(g, &r.ended, err);
    if (rc < 0)
        coll_finish(&r.coll);
    return rc;
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

/* ---- messages ---- */

static int check_message(struct ddp_group *g, const void *buf, size_t bytes, int peer,
                         int tag, struct ddp_err *err)
{
    if (group_hear(g, err) < 0)
        return -1;
    if (peer < 0 || peer >= g->layout.size)
        return err_set(err, "a message with rank %d in a group of %d", peer,
                       g->layout.size);
    if (tag < 0)
        return err_set(err, "the tag %d is negative", tag);
    if (bytes > 0 && !buf)
        return err_set(err, "the buffer of %zu bytes is NULL", bytes);
    return 0;
}

static struct ddp_request message(enum request_kind kind, struct ddp_group *g,
                                  const void *buf, size_t bytes, int peer, int tag)
{
    /* a buffer to be sent is only read */
    return (struct ddp_request){.kind = kind,
                                .group = g,
                                .bytes = bytes,
                                .peer = peer,
                                .tag = tag,
                                .data = (char *)(uintptr_t)buf};
}

static void post(struct ddp_group *g, struct ddp_request *r)
{
    if (r->kind == REQUEST_SEND)
        messages_send(g, r);
    else
        messages_recv(g, r);
}

int ddp_send(struct ddp_group *g, const void *buf, size_t bytes, int dest, int tag,
             struct ddp_err *err)
{
    if (check_message(g, buf, bytes, dest, tag, err) < 0)
        return -1;
    struct ddp_request r = message(REQUEST_SEND, g, buf, bytes, dest, tag);
    post(g, &r);
    return group_wait(g, &r.ended, err);
}

int ddp_recv(struct ddp_group *g, void *buf, size_t bytes, int source, int tag,
             struct ddp_err *err)
{
    if (check_message(g, buf, bytes, source, tag, err) < 0)
        return -1;
    struct ddp_request r = message(REQUEST_RECV, g, buf, bytes, source, tag);
    post(g, &r);
    return group_wait(g, &r.ended, err);
}

/* ---- without waiting ---- */

static struct ddp_request *hand_out(struct ddp_group *g, const struct ddp_request *r)
{
    struct ddp_request *mine = xmemdup(r, sizeof *r);
    mine->older = g->requests;
    if (g->requests)
        g->requests->newer = mine;
    g->requests = mine;
    return mine;
}

static void give_back(struct ddp_request *r)
{
    if (r->older)
        r->older->newer = r->newer;
    if (r->newer)
        r->newer->older = r->older;
    else
        r->group->requests = r->older;
    coll_finish(&r->coll);
    free(r);
}

/* A first push; a failure is told by ddp_test() or ddp_wait(). */
static struct ddp_request *set_off(struct ddp_group *g, struct ddp_request *r)
{
    struct ddp_err unwanted;
    if (!r->ended)
        group_progress(g, &unwanted);
    return r;
}

struct ddp_request *ddp_isend(struct ddp_group *g, const void *buf, size_t bytes,
                              int dest, int tag, struct ddp_err *err)
{
    if (check_message(g, buf, bytes, dest, tag, err) < 0)
        return NULL;
    struct ddp_request r = message(REQUEST_SEND, g, buf, bytes, dest, tag), *mine;
    mine = hand_out(g, &r);
    post(g, mine);
    return set_off(g, mine);
}

struct ddp_request *ddp_irecv(struct ddp_group *g, void *buf, size_t bytes, int source,
                              int tag, struct ddp_err *err)
{
    if (check_message(g, buf, bytes, source, tag, err) < 0)
        return NULL;
    struct ddp_request r = message(REQUEST_RECV, g, buf, bytes, source, tag), *mine;
    mine = hand_out(g, &r);
    post(g, mine);
    return set_off(g, mine);
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
    struct ddp_request r = {.kind = REQUEST_COLL, .group = g, .coll = c}, *mine;
    mine = hand_out(g, &r);
    start(g, mine);
    return set_off(g, mine);
}

int ddp_test(struct ddp_request *r, int *done, struct ddp_err *err)
{
    struct ddp_err why;
    bool failed = !r->ended && group_progress(r->group, &why) < 0 && !r->ended;
    *done = r->ended;
    if (failed && err)
        *err = why;
    if (r->ended || failed)
        give_back(r);
    return failed ? -1 : 0;
}

int ddp_wait(struct ddp_request *r, struct ddp_err *err)
{
    int rc = r->ended ? 0 : group_wait(r->group, &r->ended, err);
    give_back(r);
    return rc;
}
