/* worker/group/nccl_p2p.c - messages of CUDA memory, by libnccl
 *
 * NCCL runs the operations of a communicator one after the other, and a send waits for
 * its receive: with one communicator, ranks that start their messages in different orders
 * would wait for each other. So there is a channel for each peer and direction, with a
 * communicator of two ranks (0 sends, 1 receives) and a stream: within it messages pair
 * in order, as NCCL knows no tags, and it waits for nothing else.
 *
 * A channel is made when its first message is started. The sender makes NCCL's id and
 * sends it to the receiver through the group below; both then connect in a thread of
 * their own, with a message of one byte, since NCCL connects two ranks inside of the call
 * by which they first exchange something. Until then messages wait; afterwards NCCL gets
 * a message in the call that starts it.
 *
 * A message to oneself is a copy.
 */
#include "worker/group/nccl_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/group/nccl_join.h"

#include <limits.h>
#include <stdlib.h>

enum channel_state { CHANNEL_NEW, CHANNEL_ID, CHANNEL_CONNECTS, CHANNEL_READY };

struct nccl_channel {
    struct nccl_channel *next;
    int peer;
    enum request_kind kind; /* REQUEST_SEND or REQUEST_RECV */
    enum channel_state state;
    struct nccl_queue queue; /* to oneself: no communicator */
    struct nccl_id id;
    struct ddp_request exchange; /* of the id */
    uint64_t byte;               /* owned: device memory, to connect with */
    struct offload *connecting;  /* owned; it uses queue.stream and byte */
    struct request_queue waiting, in_flight;
};

/* ---- when an operation has ended ---- */

int nccl_mark(struct nccl *n, struct ddp_request *r, cuda_stream s, struct ddp_err *err)
{
    if (n->nidle == 0) {
        cuda_event e;
        if (cuda_check(cuda_api.event_create(&e, CUDA_NO_TIMING), "cuEventCreate", err) <
            0)
            return -1;
        n->events = xrealloc(n->events, n->nevents + 1, sizeof *n->events);
        n->idle = xrealloc(n->idle, n->nevents + 1, sizeof *n->idle);
        n->events[n->nevents++] = n->idle[n->nidle++] = e;
    }
    r->mark = n->idle[--n->nidle];
    return cuda_check(cuda_api.event_record(r->mark, s), "cuEventRecord", err);
}

int nccl_passed(struct nccl *n, struct ddp_request *r, void *comm, struct ddp_err *err)
{
    int error = 0, rc = cuda_api.event_query(r->mark);
    if (rc == 0)
        n->idle[n->nidle++] = r->mark;
    if (rc != CUDA_NOT_READY)
        return rc == 0 ? 1 : cuda_check(rc, "cuEventQuery", err);
    return comm && nccl_api.async_error(comm, &error) == 0
               ? nccl_check(error, "NCCL", err)
               : 0;
}

/* ---- channels ---- */

static struct nccl_channel *channel_of(struct nccl *n, int peer, enum request_kind kind)
{
    struct nccl_channel *c = n->channels;
    while (c && (c->peer != peer || c->kind != kind))
        c = c->next;
    if (!c) {
        c = xcalloc(1, sizeof *c);
        *c = (struct nccl_channel){.next = n->channels, .peer = peer, .kind = kind};
        n->channels = c;
    }
    return c;
}

struct connect {
    struct nccl_init init;
    cuda_stream stream;
    void *byte;
};

static void call_connect(void *copy)
{
    struct connect *c = copy;
    struct nccl_init *i = &c->init;
    nccl_call_init(i);
    if (i->rc == 0)
        i->rc = i->rank == 0
                    ? nccl_api.send(c->byte, 1, NCCL_BYTES, 1, i->comm, c->stream)
                    : nccl_api.recv(c->byte, 1, NCCL_BYTES, 0, i->comm, c->stream);
}

static int begin_connecting(struct nccl_channel *c, struct ddp_err *err)
{
    struct connect begun = {.init = {.enter = cuda_use_context,
                                     .device = cuda_context(),
                                     .id = c->id,
                                     .size = 2,
                                     .rank = c->kind == REQUEST_SEND ? 0 : 1},
                            .stream = c->queue.stream,
                            .byte = (void *)(uintptr_t)c->byte};
    c->connecting = offload_begin(call_connect, &begun, sizeof begun, err);
    c->state = CHANNEL_CONNECTS;
    return c->connecting ? 0 : -1;
}

static int begin_exchange(struct ddp_group *g, struct nccl_channel *c,
                          struct ddp_err *err)
{
    TRY(cuda_check(cuda_api.alloc(&c->byte, 1), "cuMemAlloc", err));
    message_init(&c->exchange, g, c->kind, c->peer, INT_MAX, 1 + COLL_BOOTSTRAP,
                 c->id.bytes, sizeof c->id.bytes);
    c->state = CHANNEL_ID;
    if (c->kind == REQUEST_SEND &&
        nccl_check(nccl_api.unique_id(&c->id), "ncclGetUniqueId", err) < 0)
        return -1;
    p2p_post(g, &c->exchange);
    return c->kind == REQUEST_SEND ? begin_connecting(c, err) : 0;
}

static int finish_connecting(struct nccl_channel *c, struct ddp_err *err)
{
    const struct connect *done = offload_wait(c->connecting, 0);
    if (!done)
        return 0;
    int rc = done->init.rc;
    c->queue.comm = done->init.comm;
    c->state = CHANNEL_READY;
    offload_end(c->connecting);
    c->connecting = NULL;
    return nccl_check(rc, "connecting two ranks", err);
}

/* Continue setting the channel up, as far as possible without waiting. */
static int connect_channel(struct ddp_group *g, struct nccl_channel *c,
                           struct ddp_err *err)
{
    if (c->state == CHANNEL_NEW) {
        TRY(cuda_check(cuda_api.stream_create(&c->queue.stream, CUDA_NON_BLOCKING),
                       "cuStreamCreate", err));
        c->state = CHANNEL_READY;
        if (c->peer != g->layout.rank && begin_exchange(g, c, err) < 0)
            return -1;
    }
    if (c->state == CHANNEL_ID && c->exchange.ended && begin_connecting(c, err) < 0)
        return -1;
    return c->state == CHANNEL_CONNECTS ? finish_connecting(c, err) : 0;
}

/* ---- messages ---- */

/* Mark the first waiting request, which is in flight now. */
static int set_off(struct nccl *n, struct nccl_channel *c, cuda_stream s,
                   struct ddp_err *err)
{
    struct ddp_request *r = c->waiting.first;
    TRY(nccl_mark(n, r, s, err));
    queue_remove(&c->waiting, r);
    queue_append(&c->in_flight, r);
    return 0;
}

static int start_message(struct nccl *n, struct nccl_channel *c, struct ddp_err *err)
{
    const struct ddp_request *r = c->waiting.first;
    const struct nccl_queue *q = &c->queue;
    int rc = 0;
    if (r->bytes > 0 && c->kind == REQUEST_SEND)
        rc = nccl_api.send(r->data, r->bytes, NCCL_BYTES, 1, q->comm, q->stream);
    else if (r->bytes > 0)
        rc = nccl_api.recv(r->data, r->bytes, NCCL_BYTES, 0, q->comm, q->stream);
    return nccl_check(rc, "a message", err) < 0 ? -1 : set_off(n, c, q->stream, err);
}

/* Copy matched messages to oneself; either channel may come first. */
static int start_copies(struct nccl *n, int me, struct ddp_err *err)
{
    struct nccl_channel *out = channel_of(n, me, REQUEST_SEND);
    struct nccl_channel *in = channel_of(n, me, REQUEST_RECV);
    while (out->waiting.first && in->waiting.first) {
        const struct ddp_request *from = out->waiting.first, *to = in->waiting.first;
        cuda_stream s = out->queue.stream ? out->queue.stream : in->queue.stream;
        if (from->bytes != to->bytes)
            return err_set(err, "rank %d sends itself %zu bytes and receives %zu", me,
                           from->bytes, to->bytes);
        if (cuda_check(
                cuda_api.copy((uintptr_t)to->data, (uintptr_t)from->data, from->bytes, s),
                "cuMemcpyAsync", err) < 0 ||
            set_off(n, out, s, err) < 0 || set_off(n, in, s, err) < 0)
            return -1;
    }
    return 0;
}

static int end_messages(struct ddp_group *g, struct nccl_channel *c, struct ddp_err *err)
{
    struct ddp_request *r;
    while ((r = c->in_flight.first)) {
        int rc = nccl_passed(g->foreign, r, c->queue.comm, err);
        if (rc <= 0)
            return rc;
        queue_remove(&c->in_flight, r); /* the waiting caller may reuse it at once */
        r->ended = true;
        g->npending--;
    }
    return 0;
}

static int channel_progress(struct ddp_group *g, struct nccl_channel *c,
                            struct ddp_err *err)
{
    if (c->state != CHANNEL_READY && connect_channel(g, c, err) < 0)
        return -1;
    if (c->peer == g->layout.rank && start_copies(g->foreign, c->peer, err) < 0)
        return -1;
    while (c->state == CHANNEL_READY && c->peer != g->layout.rank && c->waiting.first) {
        TRY(start_message(g->foreign, c, err));
    }
    return end_messages(g, c, err);
}

void nccl_p2p_post(struct ddp_group *g, struct ddp_request *r)
{
    g->npending++;
    queue_append(&channel_of(g->foreign, r->peer, r->kind)->waiting, r);
}

int nccl_p2p_progress(struct ddp_group *g, struct ddp_err *err)
{
    const struct nccl *n = g->foreign;
    for (struct nccl_channel *c = n ? n->channels : NULL; c && !g->broken; c = c->next) {
        if ((c->waiting.first || c->in_flight.first) && channel_progress(g, c, err) < 0)
            return -1;
    }
    if (g->broken)
        *err = g->why;
    return g->broken ? -1 : 0;
}

bool nccl_p2p_cancel(struct ddp_group *g, struct ddp_request *r)
{
    bool off = queue_remove(&channel_of(g->foreign, r->peer, r->kind)->waiting, r);
    g->npending -= off;
    return off;
}

/* The data do not pass through us, so the end of a peer on another host would not show.
 */
void nccl_p2p_watch(struct ddp_group *g)
{
    const struct nccl *n = g->foreign;
    const struct layout *l = &g->layout;
    for (const struct nccl_channel *c = n ? n->channels : NULL; c; c = c->next) {
        if ((c->waiting.first || c->in_flight.first) &&
            l->members[c->peer].host != l->members[l->rank].host)
            tcp_watch(g->tcp, c->peer);
    }
}

bool nccl_p2p_close(struct nccl *n, bool abort, int64_t deadline_ms)
{
    struct ddp_err ignored;
    bool all = true;
    for (struct nccl_channel *c = n->channels; c; c = c->next) {
        if (c->connecting)
            finish_connecting(c, &ignored);
        if (!c->connecting && c->queue.comm) {
            c->connecting = nccl_end(&c->queue.comm, abort);
            all = all && c->connecting;
        }
    }
    while (n->channels) {
        struct nccl_channel *c = n->channels;
        n->channels = c->next;
        bool ended =
            !c->connecting || offload_wait(c->connecting, deadline_ms - now_ms());
        offload_end(c->connecting);
        if (ended && c->queue.stream)
            cuda_api.stream_destroy(c->queue.stream);
        if (ended && c->byte)
            cuda_api.free(c->byte);
        all = all && ended;
        free(c);
    }
    return all;
}
