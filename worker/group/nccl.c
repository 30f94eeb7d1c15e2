/* worker/group/nccl.c - collectives and messages of CUDA memory, by libnccl
 *
 * The library is found at run time, so that ours also loads where there is none.
 *
 * A collective is given to NCCL by the call that starts it. All of a group go through one
 * stream, in the order they were started, so several may be in flight; an event behind
 * each says when it has ended, and until then NCCL is asked for errors.
 *
 * ncclCommInitRank(), ncclCommDestroy() and ncclCommAbort() may wait for ever: they are
 * called in threads of their own and given up at a deadline.
 *
 * What the caller has queued on a stream must have been done before it calls: as with
 * host memory, the buffer belongs to the request until it has ended.
 *
 * Messages: NCCL runs the operations of a communicator one after the other, and a send
 * waits for its receive: with one communicator, ranks that start their messages in
 * different orders would wait for each other. So there is a channel for each peer and
 * direction, with a communicator of two ranks (0 sends, 1 receives) and a stream: within
 * it messages pair in order, as NCCL knows no tags, and it waits for nothing else.
 *
 * A channel is made when its first message is started. The sender makes NCCL's id and
 * sends it to the receiver through the group below; both then connect in a thread of
 * their own, with a message of one byte, since NCCL connects two ranks inside of the call
 * by which they first exchange something. Until then messages wait; afterwards NCCL gets
 * a message in the call that starts it.
 *
 * A message to oneself is a copy.
 */
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/gpu/libnccl.h"
#include "worker/group/backend.h"
#include "worker/group/nccl_join.h"
#include "worker/group/reduce.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { END_MS = 5000 }; /* for communicators to be destroyed */

/* A communicator, and the stream that its operations go through. */
struct nccl_queue {
    void *comm;
    cuda_stream stream;
};

/* A group's; its ->foreign. */
struct nccl {
    struct nccl_channel *channels; /* owned */
    struct nccl_queue *coll;       /* that of all ranks, for collectives */
    cuda_event *events, *idle;     /* owned: all that were made, and those not in use */
    size_t nevents, nidle;
    struct nccl *next; /* among the abandoned */
};

enum channel_state { CHANNEL_NEW, CHANNEL_ID, CHANNEL_CONNECTS, CHANNEL_READY };

struct nccl_channel {
    struct nccl_channel *next;
    int peer;
    enum request_kind kind; /* REQUEST_SEND, REQUEST_RECV; REQUEST_COLL: of all ranks */
    enum channel_state state;
    struct nccl_queue queue; /* to oneself: no communicator */
    struct nccl_id id;
    struct ddp_request exchange; /* of the id */
    uint64_t byte;               /* owned: device memory, to connect with */
    struct offload *connecting;  /* owned; it uses queue.stream and byte */
    struct request_queue waiting, in_flight;
};

/* ---- when an operation has ended ---- */

/* Record an event for `r` behind what the stream has been given. */
static int mark(struct nccl *n, struct ddp_request *r, cuda_stream s, struct ddp_err *err)
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

/* 1: the event of `r` has passed, and is free for others; 0: not yet; -1: it failed, or
 * the communicator did (NULL: none is used). */
static int passed(struct nccl *n, struct ddp_request *r, void *comm, struct ddp_err *err)
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
        rc = start_one(g, n->coll, &r->coll);
    int ended = nccl_api.end();
    TRY(nccl_check(rc ? rc : ended, coll_name(&r->coll).text, err));
    r->coll.state = COLL_WORKS;
    return mark(n, r, n->coll->stream, err);
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
    int rc = passed(n, g->colls.first, n->coll->comm, err); /* `c` is the first's */
    return rc < 0 ? ADVANCE_ERROR : rc == 0 ? ADVANCE_LATER : ADVANCE_DONE;
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
    TRY(mark(n, r, s, err));
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
        TRY(cuda_check(
            cuda_api.copy((uintptr_t)to->data, (uintptr_t)from->data, from->bytes, s),
            "cuMemcpyAsync", err));
        TRY(set_off(n, out, s, err));
        TRY(set_off(n, in, s, err));
    }
    return 0;
}

static int end_messages(struct ddp_group *g, struct nccl_channel *c, struct ddp_err *err)
{
    struct ddp_request *r;
    while ((r = c->in_flight.first)) {
        int rc = passed(g->foreign, r, c->queue.comm, err);
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

static void nccl_post(struct ddp_group *g, struct ddp_request *r)
{
    g->npending++;
    queue_append(&channel_of(g->foreign, r->peer, r->kind)->waiting, r);
}

static int nccl_progress(struct ddp_group *g, int *culprit, struct ddp_err *err)
{
    const struct nccl *n = g->foreign;
    *culprit = -1;
    TRY(start_new(g, err));
    for (struct nccl_channel *c = n ? n->channels : NULL; c && !g->broken; c = c->next) {
        if ((c->waiting.first || c->in_flight.first) && channel_progress(g, c, err) < 0)
            return -1;
    }
    if (g->broken)
        *err = g->why;
    return g->broken ? -1 : 0;
}

static bool nccl_cancel(struct ddp_group *g, struct ddp_request *r)
{
    bool off = queue_remove(&channel_of(g->foreign, r->peer, r->kind)->waiting, r);
    g->npending -= off;
    return off;
}

/* The data do not pass through us, so the end of a peer on another host would not show.
 */
static void nccl_watch(struct ddp_group *g)
{
    const struct nccl *n = g->foreign;
    for (const struct nccl_channel *c = n ? n->channels : NULL; c; c = c->next) {
        if ((c->waiting.first || c->in_flight.first) &&
            !layout_is_here(&g->layout, c->peer))
            tcp_watch(g->tcp, c->peer);
    }
}

/* ---- joining: nccl_join.h ---- */

void nccl_call_init(void *init)
{
    struct nccl_init *i = init;
    i->enter(i->device);
    i->rc = nccl_api.init(&i->comm, i->size, i->id, i->rank);
}

static int join(struct ddp_group *g, struct nccl_init *i, struct ddp_err *err)
{
    char what[64];
    if (i->rank == 0 &&
        nccl_check(nccl_api.unique_id(&i->id), "ncclGetUniqueId", err) < 0)
        return -1;
    TRY(group_share(g, COLL_BROADCAST, &i->id, &i->id, sizeof i->id, err));
    snprintf(what, sizeof what, "%s, ncclCommInitRank", nccl_api.name);
    TRY(group_call_foreign(g, nccl_call_init, i, sizeof *i, what,
                           "look at NCCL_SOCKET_IFNAME, and at what NCCL_DEBUG=INFO says",
                           err));
    return nccl_check(i->rc, what, err);
}

int nccl_join(struct ddp_group *g, void (*enter)(void *device), void *device, void **comm,
              struct ddp_err *err)
{
    struct nccl_init i = {
        .enter = enter, .device = device, .size = g->layout.size, .rank = g->layout.rank};
    int rc = join(g, &i, err);
    *comm = rc == 0 ? i.comm : NULL;
    return rc == 0 || g->broken ? rc : group_failed(g, err);
}

/* ---- life ---- */

/* Close all channels; false: one of them still waited at `deadline_ms`, and what it uses
 * is left as it is. */
static bool close_channels(struct nccl *n, bool abort, int64_t deadline_ms)
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

/* Groups whose calls to NCCL had not returned when they were closed: what such a call may
 * still use is kept until the process ends. */
static struct nccl *_Atomic abandoned;

static void nccl_close(struct ddp_group *g)
{
    struct nccl *n = g->foreign;
    if (!n)
        return;
    g->foreign = NULL;
    if (!close_channels(n, g->broken, now_ms() + END_MS)) {
        n->next = atomic_exchange(&abandoned, n);
        return;
    }
    for (size_t i = 0; i < n->nevents; i++)
        cuda_api.event_destroy(n->events[i]);
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
    n->coll = &channel_of(n, g->layout.rank, REQUEST_COLL)->queue;
    TRY(nccl_load(err));
    TRY(cuda_open(device_of_rank(g), err));
    TRY(cuda_check(cuda_api.stream_create(&n->coll->stream, CUDA_NON_BLOCKING),
                   "cuStreamCreate", err));
    return nccl_join(g, cuda_use_context, cuda_context(), &n->coll->comm, err);
}

const struct backend backend_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .advance = nccl_advance,
    .post = nccl_post,
    .progress = nccl_progress,
    .cancel = nccl_cancel,
    .watch = nccl_watch,
    .on_device = true,
};
