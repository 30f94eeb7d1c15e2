/* worker/group/request.c - messages, and what is under way: the public calls */
#include "worker/group/request.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/backend.h"
#include "worker/group/messages.h"

#include <stdlib.h>

enum { ANYBODY = -1 };

/* ---- messages ---- */

static int check_message(struct ddp_group *g, const void *buf, size_t bytes, int peer,
                         int tag, struct ddp_err *err)
{
    if (group_hear(g, err) < 0)
        return -1;
    if (peer != ANYBODY && (peer < 0 || peer >= g->layout.size))
        return err_set(err, "a message with rank %d in a group of %d", peer,
                       g->layout.size);
    if (tag < 0)
        return err_set(err, "the tag %d is negative", tag);
    if (bytes > 0 && !buf)
        return err_set(err, "the buffer of %zu bytes is NULL", bytes);
    if (peer == ANYBODY && g->backend->on_device)
        return err_set(err, "'%s' has no messages from anybody", g->backend->name);
    return bytes > 0 ? group_takes(g, buf, err) : 0;
}

static struct ddp_request message(enum request_kind kind, struct ddp_group *g,
                                  const void *buf, size_t bytes, int peer, int tag)
{
    /* a buffer to be sent is only read */
    return (struct ddp_request){.kind = kind,
                                .group = g,
                                .bytes = bytes,
                                .any = peer == ANYBODY,
                                .peer = peer == ANYBODY ? 0 : peer,
                                .tag = tag,
                                .data = (char *)(uintptr_t)buf};
}

static void post(struct ddp_group *g, struct ddp_request *r)
{
    if (g->backend->post)
        g->backend->post(g, r);
    else if (r->kind == REQUEST_SEND)
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

int ddp_recv_any(struct ddp_group *g, void *buf, size_t bytes, int tag, int *source,
                 struct ddp_err *err)
{
    if (check_message(g, buf, bytes, ANYBODY, tag, err) < 0)
        return -1;
    struct ddp_request r = message(REQUEST_RECV, g, buf, bytes, ANYBODY, tag);
    r.source = source;
    post(g, &r);
    return group_wait(g, &r.ended, err);
}

/* ---- without waiting ---- */

struct ddp_request *request_hand_out(struct ddp_group *g, const struct ddp_request *r)
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

struct ddp_request *request_set_off(struct ddp_group *g, struct ddp_request *r)
{
    struct ddp_err unwanted;
    if (!r->ended && !g->backend->post) /* which waits for more, to go together */
        group_progress(g, &unwanted);
    return r;
}

struct ddp_request *ddp_isend(struct ddp_group *g, const void *buf, size_t bytes,
                              int dest, int tag, struct ddp_err *err)
{
    if (check_message(g, buf, bytes, dest, tag, err) < 0)
        return NULL;
    struct ddp_request r = message(REQUEST_SEND, g, buf, bytes, dest, tag), *mine;
    mine = request_hand_out(g, &r);
    post(g, mine);
    return request_set_off(g, mine);
}

struct ddp_request *ddp_irecv(struct ddp_group *g, void *buf, size_t bytes, int source,
                              int tag, struct ddp_err *err)
{
    if (check_message(g, buf, bytes, source, tag, err) < 0)
        return NULL;
    struct ddp_request r = message(REQUEST_RECV, g, buf, bytes, source, tag), *mine;
    mine = request_hand_out(g, &r);
    post(g, mine);
    return request_set_off(g, mine);
}

struct ddp_request *ddp_irecv_any(struct ddp_group *g, void *buf, size_t bytes, int tag,
                                  int *source, struct ddp_err *err)
{
    if (check_message(g, buf, bytes, ANYBODY, tag, err) < 0)
        return NULL;
    struct ddp_request r = message(REQUEST_RECV, g, buf, bytes, ANYBODY, tag), *mine;
    r.source = source;
    mine = request_hand_out(g, &r);
    post(g, mine);
    return request_set_off(g, mine);
}

int ddp_test(struct ddp_request *r, int *done, struct ddp_err *err)
{
    struct ddp_err why;
    bool failed = !r->ended && group_poll(r->group, &r->ended, &why) < 0 && !r->ended;
    *done = r->ended;
    if (failed && err)
        *err = why;
    if (r->ended || failed)
        give_back(r);
    return failed ? -1 : 0;
}

int ddp_cancel(struct ddp_request *r, int *cancelled, struct ddp_err *err)
{
    struct ddp_group *g = r->group;
    *cancelled = 0;
    if (group_hear(g, err) < 0)
        return -1;
    if (r->kind != REQUEST_COLL && !r->ended &&
        (g->backend->cancel ? g->backend->cancel : messages_cancel)(g, r)) {
        *cancelled = 1;
        give_back(r);
    }
    return 0;
}

int ddp_wait(struct ddp_request *r, struct ddp_err *err)
{
    int rc = r->ended ? 0 : group_wait(r->group, &r->ended, err);
    give_back(r);
    return rc;
}
