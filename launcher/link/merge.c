/* launcher/link/merge.c - see merge.h
 *
 * Held frames are in two lists. Those of LIST and EMPTY go after LIST_MS at the latest;
 * those of SAME and FENCE when all nodes have sent them, or after SAME_MS: the launcher
 * does nothing before the last of them anyway. LIST goes first: a rank's EXIT must not
 * arrive after the TERMINATED of its node.
 */
#include "launcher/link/merge.h"

#include "common/err.h"
#include "common/idset.h"
#include "common/mem.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

enum { LIST_MS = 3, SAME_MS = 100 };

/* Bytes of an OUTPUT without data, which ends its stream. One with data is never held:
 * the next one of its rank, which may be longer, must not pass it. */
enum { EMPTY_SIZE = 5 };

/* A list is sent when it has so many bytes, to bound what is held. */
enum { HELD_MAX = 256 << 10 };

struct held {
    enum msg_type type;
    struct idset nodes; /* owned */
    struct pack body;   /* owned */
    struct held *prev, *next;
};

struct merge {
    unsigned self;
    void (*send)(const struct frame *f, void *arg);
    void *arg;
    size_t expected;
    struct held *list, *same;  /* owned */
    size_t listed, joined;     /* bytes in them */
    struct event *soon, *late; /* owned: timers of the two */
};

/* --- sending ------------------------------------------------------------------------ */

static void held_free(struct held *h)
{
    idset_finish(&h->nodes);
    pack_finish(&h->body);
    free(h);
}

static void fill(struct merged_frame *to, const struct held *h)
{
    *to = (struct merged_frame){.type = h->type,
                                .nspans = (uint32_t)h->nodes.n,
                                .body = h->body.p,
                                .nbody = (uint32_t)h->body.n};
    to->spans = xcalloc(h->nodes.n, sizeof *to->spans);
    for (size_t i = 0; i < h->nodes.n; i++)
        to->spans[i] =
            (uint32_t)h->nodes.spans[i].lo << 16 | (uint32_t)h->nodes.spans[i].hi;
}

static bool is_of_one_node(const struct held *h)
{
    return h->nodes.n == 1 && h->nodes.spans[0].lo == h->nodes.spans[0].hi;
}

/* Send a list and empty it. A single frame of one node needs no other frame around it. */
static void send_held(struct merge *m, struct held **list)
{
    struct held *h, *next;
    struct msg_merged all = {0};
    struct pack k = {0};
    struct frame f = {.node = m->self};
    DL_COUNT(*list, h, all.nframes);
    if (all.nframes == 0)
        return;
    if (all.nframes == 1 && is_of_one_node(*list)) {
        h = *list;
        f = (struct frame){.type = h->type,
                           .node = (unsigned)h->nodes.spans[0].lo,
                           .body = h->body.p,
                           .size = h->body.n};
        m->send(&f, m->arg);
    } else {
        struct merged_frame *to = all.frames = xcalloc(all.nframes, sizeof *to);
        DL_FOREACH (*list, h)
            fill(to++, h);
        msg_merged_pack(&all, &k);
        f.type = MSG_MERGED;
        f.body = k.p;
        f.size = k.n;
        m->send(&f, m->arg);
        pack_finish(&k);
        msg_merged_finish(&all);
    }
    DL_FOREACH_SAFE (*list, h, next) {
        DL_DELETE(*list, h);
        held_free(h);
    }
}

static void flush_list(struct merge *m)
{
    event_del(m->soon);
    m->listed = 0;
    send_held(m, &m->list);
}

void merge_flush(struct merge *m)
{
    flush_list(m);
    event_del(m->late);
    m->joined = 0;
    send_held(m, &m->same);
}

static void on_soon(evutil_socket_t fd, short what, void *arg)
{
    flush_list(arg);
}

static void on_late(evutil_socket_t fd, short what, void *arg)
{
    merge_flush(arg);
}

static void arm(struct event *timer, int ms)
{
    if (!evtimer_pending(timer, NULL))
        loop_arm(timer, ms);
}

/* --- holding ------------------------------------------------------------------------ */

static void add_nodes(struct held *h, const uint32_t *spans, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        idset_add(&h->nodes, (int)(spans[i] >> 16), (int)(spans[i] & 0xffff));
}

static void hold(struct held **list, const struct frame *f, const uint32_t *spans,
                 uint32_t n)
{
    struct held *h = xcalloc(1, sizeof *h);
    h->type = f->type;
    add_nodes(h, spans, n);
    pack_bytes(&h->body, f->body, f->size);
    DL_APPEND(*list, h);
}

static void hold_listed(struct merge *m, const struct frame *f, const uint32_t *spans,
                        uint32_t n)
{
    hold(&m->list, f, spans, n);
    m->listed += f->size + FRAME_HEAD;
    if (m->listed >= HELD_MAX)
        flush_list(m);
    else
        arm(m->soon, LIST_MS);
}

/* Bytes that equal frames of this type have in common: all but a fence's status and data.
 * 0: this one is not merged. */
static size_t common_size(const struct frame *f)
{
    struct msg_fence fence;
    struct ddp_err err;
    if (f->type != MSG_FENCE)
        return f->size;
    if (msg_fence_unpack(f, &fence, &err) < 0)
        return 0;
    size_t size = f->size - fence.ndata - sizeof fence.status;
    bool of_all = fence.nnodes == 0;
    msg_fence_finish(&fence);
    return of_all ? size : 0;
}

/* The data of one more contribution to a fence; the first error is kept. */
static void join(struct held *h, const struct frame *f, size_t common)
{
    static const uint8_t none[4] = {0};
    if (f->type != MSG_FENCE)
        return;
    if (memcmp(h->body.p + common, none, sizeof none) == 0)
        memcpy(h->body.p + common, f->body + common, sizeof none);
    size_t head = common + sizeof none;
    pack_bytes(&h->body, f->body + head, f->size - head);
}

static void hold_same(struct merge *m, const struct frame *f, size_t common,
                      const uint32_t *spans, uint32_t n)
{
    struct held *h;
    if (m->joined + f->size > FENCE_MAX) /* it must fit a frame */
        merge_flush(m);
    m->joined += f->size;
    DL_FOREACH (m->same, h) {
        if (h->type == f->type && (h->body.n == f->size || f->type == MSG_FENCE) &&
            h->body.n >= common &&
            (common == 0 || memcmp(h->body.p, f->body, common) == 0))
            break;
    }
    if (h) {
        add_nodes(h, spans, n);
        join(h, f, common);
    } else {
        hold(&m->same, f, spans, n);
        h = m->same->prev; /* the last one */
    }
    if ((size_t)idset_count(&h->nodes) >= m->expected)
        merge_flush(m);
    else
        arm(m->late, SAME_MS);
}

void merge_up_spans(struct merge *m, const struct frame *f, const uint32_t *spans,
                    uint32_t n)
{
    enum msg_merge rule = msg_merge(f->type);
    size_t common = rule == MERGE_FENCE ? common_size(f) : f->size;
    if (rule == MERGE_LIST || (rule == MERGE_EMPTY && f->size == EMPTY_SIZE)) {
        hold_listed(m, f, spans, n);
    } else if (rule == MERGE_SAME || (rule == MERGE_FENCE && common > 0)) {
        hold_same(m, f, common, spans, n);
    } else {
        if (rule == MERGE_AFTER)
            merge_flush(m);
        m->send(f, m->arg);
    }
}

void merge_up(struct merge *m, const struct frame *f)
{
    uint32_t span = (uint32_t)f->node << 16 | (uint32_t)f->node;
    merge_up_spans(m, f, &span, 1);
}

void merge_expect(struct merge *m, size_t nodes)
{
    m->expected = nodes;
}

/* --- taking apart ------------------------------------------------------------------- */

int merge_entries(const struct frame *merged,
                  void (*fn)(const struct frame *f, const uint32_t *spans, uint32_t n,
                             void *arg),
                  void *arg, struct ddp_err *err)
{
    struct msg_merged m;
    int rc = msg_merged_unpack(merged, &m, err);
    for (uint32_t i = 0; rc == 0 && i < m.nframes; i++) {
        const struct merged_frame *e = &m.frames[i];
        bool valid = e->type < MSG_TYPES && e->nspans > 0;
        enum msg_merge rule = valid ? msg_merge((enum msg_type)e->type) : MERGE_PASS;
        for (uint32_t k = 0; k < e->nspans && valid; k++)
            valid = e->spans[k] >> 16 <= (e->spans[k] & 0xffff) &&
                    (e->spans[k] & 0xffff) < NODE_ALL;
        if (!valid || rule == MERGE_PASS || rule == MERGE_AFTER) {
            rc = err_set(err, "a merged frame of type %u", e->type);
            break;
        }
        fn(&(struct frame){.type = (enum msg_type)e->type,
                           .node = e->spans[0] >> 16,
                           .body = e->body,
                           .size = e->nbody},
           e->spans, e->nspans, arg);
    }
    msg_merged_finish(&m);
    return rc;
}

struct split {
    void (*fn)(const struct frame *f, void *arg);
    void *arg;
};

static void split_entry(const struct frame *f, const uint32_t *spans, uint32_t n,
                        void *arg)
{
    const struct split *s = arg;
    struct frame one = *f;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t node = spans[i] >> 16; node <= (spans[i] & 0xffff); node++) {
            one.node = node;
            s->fn(&one, s->arg);
            if (f->type == MSG_FENCE && one.size == f->size)
                one.size = common_size(f) + sizeof(int32_t);
        }
    }
}

int merge_split(const struct frame *merged, void (*fn)(const struct frame *f, void *arg),
                void *arg, struct ddp_err *err)
{
    struct split s = {fn, arg};
    return merge_entries(merged, split_entry, &s, err);
}

/* --- life --------------------------------------------------------------------------- */

struct merge *merge_create(struct loop *loop, unsigned self,
                           void (*send)(const struct frame *f, void *arg), void *arg)
{
    struct merge *m = xcalloc(1, sizeof *m);
    *m = (struct merge){.self = self, .send = send, .arg = arg, .expected = 1};
    m->soon = loop_timer(loop, on_soon, m);
    m->late = loop_timer(loop, on_late, m);
    return m;
}

void merge_destroy(struct merge *m)
{
    if (!m)
        return;
    struct held *h, *next;
    DL_FOREACH_SAFE (m->list, h, next)
        held_free(h);
    DL_FOREACH_SAFE (m->same, h, next)
        held_free(h);
    loop_free(m->soon);
    loop_free(m->late);
    free(m);
}
