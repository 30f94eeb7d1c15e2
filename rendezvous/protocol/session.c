/* rendezvous/protocol/session.c - see session.h
 *
 * Two loops parse the input. session_feed() executes requests. While the client waits,
 * look_ahead() searches the held requests for a CANCEL_WAIT. Each has its own parser, so
 * no byte is parsed more than twice however the input arrives. A CANCEL_WAIT that was
 * found stays in the input; it is counted, and skipped when session_feed() reaches it.
 */
#include "rendezvous/protocol/session.h"

#include "common/err.h"
#include "rendezvous/protocol/http.h"
#include "rendezvous/protocol/reply_cache.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MAGIC_SIZE = 4, HELLO_SIZE = 1 + MAGIC_SIZE };

struct watch_node {
    struct watch watch; /* first: a watch is its node */
    struct watch_node *next;
    struct session *session;
};

/* -- news from the store ------------------------------------------------------------ */

static void on_wait_end(struct waiter *w, enum wait_end how)
{
    struct session *s =
        (struct session *)(void *)((char *)w - offsetof(struct session, waiter));
    if (how == WAIT_READY)
        s->ended = true;
    else
        s->dropped = true;
    s->host->news(s);
}

static void on_changed(struct watch *w, enum change how, struct bytes key,
                       const struct view *old, const struct view *now)
{
    struct session *s = ((struct watch_node *)(void *)w)->session;
    struct out *out = s->host->out(s);
    out_u8(out, (uint8_t)how);
    out_value(out, &(struct view){key, NULL});
    out_value(out, old);
    out_value(out, now);
    s->host->news(s);
}

/* -- requests ------------------------------------------------------------------------ */

static int start_wait(struct session *s, struct packed keys, struct out *out,
                      struct ddp_err *err)
{
    bool ready;
    if (waiter_start(s->space, &s->waiter, keys, &ready, err) < 0)
        return -1;
    if (ready)
        out_u8(out, 0);
    return 0;
}

static int start_barrier(struct session *s, const struct request *r, struct out *out,
                         struct ddp_err *err)
{
    bool passed;
    if (space_barrier(s->space, r->key, r->number, &s->waiter, &passed, err) < 0)
        return -1;
    if (passed)
        out_u8(out, 0);
    return 0;
}

static void answer_get(struct session *s, struct bytes key, struct out *out)
{
    struct view v;
    if (space_get(s->space, key, &v))
        out_value(out, &v);
    else
        out_u64(out,
                0); /* an empty value instead of closing; PyTorch clients wait first */
}

static int answer_add(struct session *s, const struct request *r, struct out *out,
                      struct ddp_err *err)
{
    int64_t sum;
    if (space_add(s->space, r->key, r->number, &sum, err) < 0)
        return -1;
    out_u64(out, (uint64_t)sum);
    return 0;
}

static int answer_compare_set(struct session *s, const struct request *r, struct out *out,
                              struct ddp_err *err)
{
    struct view now;
    if (space_compare_set(s->space, r->key, r->value[0], r->value[1], &now, err) < 0)
        return -1;
    out_value(out, &now);
    return 0;
}

static int multi_set(struct session *s, struct packed pairs, struct ddp_err *err)
{
    const uint8_t *at = pairs.data;
    for (size_t i = 0; i < pairs.count; i++) {
        struct bytes key = packed_next(&at), value = packed_next(&at);
        if (space_set(s->space, key, value, err) < 0)
            return -1;
    }
    return 0;
}

static void answer_pop(struct session *s, struct bytes key, struct out *out)
{
    struct blob *b;
    size_t before = space_queue_pop(s->space, key, &b);
    out_u64(out, before);
    if (before > 0) {
        out_value(out, &(struct view){{b->data, b->size}, b});
        blob_unref(b);
    }
}

static int answer_watch(struct session *s, struct bytes key, struct out *out,
                        struct ddp_err *err)
{
    struct watch_node *node = calloc(1, sizeof *node);
    if (!node)
        return err_set(err, "no memory to watch a key");
    node->watch.owner = node->session = s;
    node->watch.changed = on_changed;
    int rc = space_watch(s->space, key, &node->watch, err);
    if (rc == 0) {
        node->next = s->watches;
        s->watches = node;
    } else {
        free(node);
    }
    if (rc >= 0)
        out_u8(out, 3);
    return rc < 0 ? -1 : 0;
}

static int session_execute(struct session *s, const struct request *r, struct out *out,
                           struct ddp_err *err)
{
    switch (r->op) {
    case OP_SET:
        return space_set(s->space, r->key, r->value[0], err);
    case OP_GET:
        answer_get(s, r->key, out);
        return 0;
    case OP_ADD:
        return answer_add(s, r, out, err);
    case OP_WAIT:
        return start_wait(s, r->list, out, err);
    case OP_CHECK:
        out_u8(out, !waiter_all_present(s->space, r->list));
        return 0;
    case OP_COMPARE_SET:
        return answer_compare_set(s, r, out, err);
    case OP_GETNUMKEYS:
        out_u64(out, space_count(s->space));
        return 0;
    case OP_DELETE_KEY:
        out_u64(out, space_delete(s->space, r->key));
        return 0;
    case OP_APPEND:
        return space_append(s->space, r->key, r->value[0], err);
    case OP_MULTI_GET:
        reply_cache_multi_get(&s->host->replies, s->space, r->list, out);
        return 0;
    case OP_MULTI_SET:
        return multi_set(s, r->list, err);
    case OP_CANCEL_WAIT:
        if (s->cancelled > 0)
            s->cancelled--; /* look_ahead() has replied to it */
        else
            out_u8(out, 1); /* the wait had ended before the request arrived */
        return 0;
    case OP_PING:
        out_u32(out, (uint32_t)r->number);
        return 0;
    case OP_QUEUE_PUSH:
        return space_queue_push(s->space, r->key, r->value[0], err);
    case OP_QUEUE_POP:
        answer_pop(s, r->key, out);
        return 0;
    case OP_QUEUE_LEN:
        out_u64(out, space_queue_len(s->space, r->key));
        return 0;
    case OP_LIST_KEYS:
        reply_cache_list_keys(&s->host->replies, s->space, out);
        return 0;
    case OP_BARRIER:
        return start_barrier(s, r, out, err);
    case OP_WATCH_KEY:
        return answer_watch(s, r->key, out, err);
    case OP_VALIDATE:
        return err_set(err, "VALIDATE was sent twice");
    case OP_NONE:
        break;
    }
    return err_set(err, "unknown request");
}

/* -- which dialect ------------------------------------------------------------------- */

/* Detects the dialect. Returns the size of VALIDATE, 0 if there is none or more bytes are
 * needed. */
static ssize_t sniff(struct session *s, const uint8_t *in, size_t n, struct ddp_err *err)
{
    const struct dialect *old = s->host->rule == DIALECT_D2 ? &dialect_d2 : &dialect_d0;
    uint32_t word;
    if (in[0] == 0) {
        if (n < HELLO_SIZE)
            return 0;
        memcpy(&word, in + 1, sizeof word);
        if (word == TCPSTORE_MAGIC) {
            s->dialect = &dialect_d3;
            return HELLO_SIZE;
        }
        if (s->host->rule != DIALECT_D3 && word <= s->host->limits.max_key) {
            s->dialect = old;
            return 0;
        }
        return err_set(err,
                       "neither the magic of PyTorch since 2.2 nor the length of a "
                       "key came first: 0x%08" PRIx32,
                       word);
    }
    if (s->host->rule == DIALECT_D3 || dialect_op(&dialect_d2, in[0]) == OP_NONE)
        return err_set(err, "the first byte, %d, is not that of a TCPStore client",
                       in[0]);
    s->dialect = old;
    return 0;
}

/* An opcode that D0 lacks turns a client detected as D0 into D2. */
static void sniff_further(struct session *s, uint8_t opcode)
{
    if (s->dialect == &dialect_d0 && s->host->rule == DIALECT_AUTO &&
        dialect_op(&dialect_d0, opcode) == OP_NONE &&
        dialect_op(&dialect_d2, opcode) != OP_NONE)
        s->dialect = &dialect_d2;
}

/* -- feeding ------------------------------------------------------------------------- */

/* Called while the client waits: a CANCEL_WAIT among the held requests ends the wait. */
static int look_ahead(struct session *s, const uint8_t *in, size_t n, struct out *out,
                      struct ddp_err *err)
{
    while (s->ahead < n) {
        enum frame_state state = frame_walk(&s->look, s->dialect, &s->host->limits,
                                            in + s->ahead, n - s->ahead, err);
        if (state != FRAME_WHOLE)
            return state == FRAME_BAD ? -1 : 0;
        bool cancel = s->look.op == OP_CANCEL_WAIT;
        s->ahead += s->look.at;
        s->look = (struct frame){0};
        if (cancel) {
            s->cancelled++;
            waiter_cancel(&s->waiter);
            out_u8(out, 1);
            return 0;
        }
    }
    return 0;
}

/* What is due before the next request. Returns the size of VALIDATE, if it was read. */
static ssize_t session_begin(struct session *s, const uint8_t *in, size_t n,
                             struct out *out, struct ddp_err *err)
{
    if (s->dropped)
        return err_set(err, "the keys it waited for have been dropped");
    if (s->ended) {
        s->ended = false;
        out_u8(out, 0);
    }
    if (!s->dialect && n > 0)
        return sniff(s, in, n, err);
    if (session_waits(s) && n > 0) {
        if (s->dialect->cancels)
            return look_ahead(s, in, n, out, err);
        waiter_cancel(&s->waiter);
    }
    return 0;
}

static void search_anew(struct session *s, size_t from)
{
    if (s->ahead != from) {
        s->ahead = from;
        s->look = (struct frame){0};
    }
}

/* The request that ends at `used` waits; more input may follow it. */
static int wait_begun(struct session *s, const uint8_t *in, size_t used, size_t n,
                      struct out *out, struct ddp_err *err)
{
    if (s->dialect->cancels) {
        if (s->ahead < used)
            search_anew(s, used);
        return look_ahead(s, in, n, out, err);
    }
    if (used < n)
        waiter_cancel(&s->waiter);
    return 0;
}

ssize_t session_feed(struct session *s, const uint8_t *in, size_t n, struct out *out,
                     struct ddp_err *err)
{
    if (!s->dialect && n > 0)
        s->http |= http_begins(in[0]);
    if (s->http)
        return http_feed(s, in, n, out, err);
    ssize_t begun = session_begin(s, in, n, out, err);
    if (begun < 0)
        return -1;
    size_t used = (size_t)begun;
    struct request r;
    s->stalled = false;
    while (used < n && s->dialect && !session_waits(s)) {
        s->stalled = out_left(out) >= s->host->output_mark;
        if (s->stalled)
            break;
        if (s->frame.at == 0)
            sniff_further(s, in[used]);
        enum frame_state state =
            frame_walk(&s->frame, s->dialect, &s->host->limits, in + used, n - used, err);
        if (state == FRAME_BAD)
            return -1;
        if (state == FRAME_MORE)
            break;
        frame_request(&s->frame, in + used, &r);
        used += s->frame.at;
        s->frame = (struct frame){0};
        s->host->requests++;
        if (session_execute(s, &r, out, err) < 0 ||
            (session_waits(s) && wait_begun(s, in, used, n, out, err) < 0))
            return -1;
    }
    if (s->ahead > used)
        s->ahead -= used;
    else
        search_anew(s, 0);
    if (out->broken)
        return err_set(err, "no memory for its replies");
    return (ssize_t)used;
}

bool session_waits(const struct session *s)
{
    return waiter_waits(&s->waiter);
}

bool session_holds(const struct session *s)
{
    return s->http && session_waits(s);
}

void session_expire(struct session *s)
{
    if (session_holds(s)) {
        waiter_cancel(&s->waiter);
        s->expired = true;
    }
}

/* -- life -----------------------------------------------------------------------------
 */

void session_init(struct session *s, struct session_host *host, struct space *space)
{
    *s = (struct session){.host = host, .space = space, .waiter.end = on_wait_end};
}

void session_finish(struct session *s)
{
    waiter_cancel(&s->waiter);
    while (s->watches) {
        struct watch_node *node = s->watches;
        s->watches = node->next;
        space_unwatch(&node->watch);
        free(node);
    }
}

void session_host_finish(struct session_host *h)
{
    reply_cache_destroy(h->replies);
    h->replies = NULL;
}
