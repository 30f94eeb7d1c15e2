/* worker/group/request.c - requests and point-to-point messages: the public calls */
#include "worker/group/group.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/gpu/libcuda.h"
#include "worker/group/backend.h"

#include <stdlib.h>

#define ANY_SOURCE INT64_MIN /* no int, which users may pass */

int group_check_memory(const struct ddp_group *g, const void *p, struct ddp_err *err)
{
    bool device = cuda_is_device(p);
    if (device == g->backend->on_device)
        return 0;
    return device
               ? err_set(err,
                         "this is CUDA memory, which '%s' cannot reach: make the group "
                         "with the backend 'nccl', or copy the data first",
                         g->backend->name)
               : err_set(err, "'%s' moves CUDA memory, and this is not",
                         g->backend->name);
}

/* ---- messages ---- */

static int check_message(struct ddp_group *g, const void *buf, size_t bytes, int64_t peer,
                         int tag, struct ddp_err *err)
{
    TRY(group_check_failures(g, err));
    if (peer != ANY_SOURCE && (peer < 0 || peer >= g->layout.size))
        return err_set(err, "a message with rank %d in a group of %d", (int)peer,
                       g->layout.size);
    if (tag < 0)
        return err_set(err, "the tag %d is negative", tag);
    if (bytes > SIZE_MAX / 8)
        return err_set(err, "%zu bytes are more than memory has", bytes);
    if (bytes > 0 && !buf)
        return err_set(err, "the buffer of %zu bytes is NULL", bytes);
    if (peer == ANY_SOURCE && g->backend->on_device)
        return err_set(err, "'%s' cannot receive from any rank", g->backend->name);
    return bytes > 0 ? group_check_memory(g, buf, err) : 0;
}

void message_init(struct ddp_request *r, struct ddp_group *g, enum request_kind kind,
                  int peer, int tag, uint32_t what, void *data, size_t bytes)
{
    r->kind = kind;
    r->ended = false;
    r->group = g;
    r->data = data;
    r->bytes = bytes;
    r->peer = peer;
    r->tag = tag;
    r->any = false;
    r->source = NULL;
    r->what = what;
    r->patience = (struct patience){0};
}

struct ddp_request *request_set_off(struct ddp_group *g, struct ddp_request *r)
{
    struct ddp_err unwanted;
    if (!r->ended || g->colls.first) /* a message may be complete already */
        group_progress(g, &unwanted);
    return r;
}

/* A request for the user: freed ones are reused, as messages may be many and short. */
static struct ddp_request *take(struct ddp_group *g)
{
    struct ddp_request *r = g->idle;
    if (r) {
        g->idle = r->next;
        return r;
    }
    r = xcalloc(1, sizeof *r);
    r->made_before = g->requests;
    return g->requests = r;
}

struct ddp_request *request_hand_out(struct ddp_group *g, const struct coll *c)
{
    struct ddp_request *r = take(g);
    r->kind = REQUEST_COLL;
    r->ended = false;
    r->group = g;
    r->patience = (struct patience){0};
    r->coll = *c;
    return r;
}

static void give_back(struct ddp_request *r)
{
    struct ddp_group *g = r->group;
    if (r->kind == REQUEST_COLL)
        coll_finish(&r->coll);
    r->next = g->idle;
    g->idle = r;
}

void requests_free(struct ddp_group *g)
{
    while (g->requests) {
        struct ddp_request *r = g->requests;
        g->requests = r->made_before;
        if (r->kind == REQUEST_COLL)
            coll_finish(&r->coll);
        free(r);
    }
}

static struct ddp_request *start(struct ddp_group *g, enum request_kind kind,
                                 const void *buf, size_t bytes, int64_t peer, int tag,
                                 int *source, struct ddp_err *err)
{
    if (check_message(g, buf, bytes, peer, tag, err) < 0)
        return NULL;
    struct ddp_request *r = take(g);
    bool any = peer == ANY_SOURCE;
    void *data = (void *)(uintptr_t)buf; /* send buffers are only read */
    message_init(r, g, kind, any ? 0 : (int)peer, tag, 0, data, bytes);
    r->any = any;
    r->source = source;
    (g->backend->post ? g->backend->post : p2p_post)(g, r);
    return request_set_off(g, r);
}

int request_finish(struct ddp_request *r, struct patience *p, struct ddp_err *err)
{
    if (!r)
        return -1;
    int rc = r->ended ? 0 : group_wait(r->group, r, p, err);
    give_back(r);
    return rc;
}

/* ddp_NAME(), which waits, and ddp_iNAME(), which does not. */
#define VERB(name, kind, peer, source, ...)                                             \
    int ddp_##name(struct ddp_group *g, __VA_ARGS__, struct ddp_err *err)               \
    {                                                                                   \
        return request_finish(start(g, kind, buf, bytes, peer, tag, source, err), NULL, \
                              err);                                                     \
    }                                                                                   \
    struct ddp_request *ddp_i##name(struct ddp_group *g, __VA_ARGS__,                   \
                                    struct ddp_err *err)                                \
    {                                                                                   \
        return start(g, kind, buf, bytes, peer, tag, source, err);                      \
    }

VERB(send, REQUEST_SEND, dest, NULL, const void *buf, size_t bytes, int dest, int tag)
VERB(recv, REQUEST_RECV, source, NULL, void *buf, size_t bytes, int source, int tag)
VERB(recv_any, REQUEST_RECV, ANY_SOURCE, source, void *buf, size_t bytes, int tag,
     int *source)

int ddp_test(struct ddp_request *r, int *done, struct ddp_err *err)
{
    struct ddp_err unwanted;
    bool failed = !r->ended &&
                  group_poll(r->group, &r->ended, err ? err : &unwanted) < 0 && !r->ended;
    *done = r->ended;
    if (r->ended || failed)
        give_back(r);
    return failed ? -1 : 0;
}

int ddp_cancel(struct ddp_request *r, int *cancelled, struct ddp_err *err)
{
    struct ddp_group *g = r->group;
    *cancelled = 0;
    TRY(group_check_failures(g, err));
    if (r->kind != REQUEST_COLL && !r->ended &&
        (g->backend->cancel ? g->backend->cancel : p2p_cancel)(g, r)) {
        *cancelled = 1;
        give_back(r);
    }
    return 0;
}

int ddp_wait(struct ddp_request *r, struct ddp_err *err)
{
    return request_finish(r, NULL, err);
}

int ddp_wait_for(struct ddp_request *r, int64_t ms, int *done, struct ddp_err *err)
{
    r->patience.until = ms < INT64_MAX / 2 ? now_ms() + (ms > 0 ? ms : 0) : 0;
    int rc = r->ended ? 0 : group_wait(r->group, r, &r->patience, err);
    *done = r->ended;
    if (rc < 0 || r->ended)
        give_back(r);
    return rc;
}
