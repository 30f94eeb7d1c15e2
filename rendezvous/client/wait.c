/* rendezvous/client/wait.c - the calls of store.h that wait for other clients
 *
 * All use wait_then(): a WAIT for some keys, and the request that fetches their values.
 * With a server that answers in order both are sent in one write, which is one round
 * trip; else the second is sent when the first has ended.
 *
 * At the deadline CANCEL_WAIT ends the wait, so the connection remains usable. The wait's
 * own 0 may arrive before the cancel's 1: then the call has succeeded. Cancelling,
 * reading the pending replies and determining the missing keys have a short deadline of
 * their own; if the server misses that too, the connection is broken.
 */
#include "rendezvous/client/client.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MS    2000
#define NAMED_MAX   8    /* missing keys or ranks that an error text lists */
#define ASKED_ABOUT 4096 /* CHECKs in one write when looking for missing keys */

enum release {
    RELEASED,
    RELEASED_LATE, /* while being cancelled: the cancel's 1 is still pending */
    EXPIRED,       /* cancelled */
};

/* Keys to wait for, and the request after that. */
struct waiting {
    const char *const *keys;
    size_t nkeys;
    void (*ask)(struct ddp_store *s, const struct waiting *w); /* NULL: none */
    int (*take)(struct ddp_store *s, const struct waiting *w, struct ddp_err *err);
    struct ddp_value *values; /* filled by take() */
};

static void extend_deadline(struct ddp_store *s)
{
    int64_t soon = now_ms() + GRACE_MS;
    if (s->x.deadline < soon)
        s->x.deadline = soon;
}

static int read_cancelled(struct ddp_store *s, struct ddp_err *err)
{
    unsigned char one;
    if (store_read_u8(s, &one, err) < 0)
        return -1;
    return one == 1 ? 0 : exchange_break(&s->x, err, "answered a cancel wrongly");
}

/* Read the end of the wait. */
static int await(struct ddp_store *s, enum release *how, struct ddp_err *err)
{
    unsigned char answer;
    int ready = exchange_poll(&s->x, err);
    if (ready < 0)
        return -1;
    extend_deadline(s);
    if (ready == 0) {
        if (exchange_begin(&s->x, err) < 0)
            return -1;
        wire_op(&s->x.out, WIRE_CANCEL_WAIT);
        if (store_ask(s, err) < 0)
            return -1;
    }
    if (store_read_u8(s, &answer, err) < 0)
        return -1;
    if (answer == 0)
        *how = ready ? RELEASED : RELEASED_LATE;
    else if (answer == 1 && !ready)
        *how = EXPIRED;
    else
        return exchange_break(&s->x, err, "answered a wait wrongly");
    return 0;
}

/* Send the WAIT, after requests already in the buffer. 1: all keys exist (and the values
 * are taken); 0: the deadline; -1: broken. take() may be called also at the deadline, as
 * a server that answers in order replies to the requests after the wait. */
static int wait_then(struct ddp_store *s, const struct waiting *w, struct ddp_err *err)
{
    enum release how;
    bool together = w->ask && s->in_order;

    store_put_keys(s, WIRE_WAIT, w->keys, w->nkeys);
    if (together)
        w->ask(s, w);
    if (exchange_send(&s->x, err) < 0 || await(s, &how, err) < 0)
        return -1;
    if (how == RELEASED_LATE && !together && read_cancelled(s, err) < 0)
        return -1;
    if (how != EXPIRED && w->ask && !together) {
        if (exchange_begin(&s->x, err) < 0)
            return -1;
        w->ask(s, w);
        if (store_ask(s, err) < 0)
            return -1;
    }
    if (w->ask && (how != EXPIRED || together) && w->take(s, w, err) < 0)
        return -1;
    if (how == RELEASED_LATE && together && read_cancelled(s, err) < 0)
        return -1;
    return how != EXPIRED;
}

/* -- after a wait -- */

static void ask_get(struct ddp_store *s, const struct waiting *w)
{
    wire_op(&s->x.out, WIRE_GET);
    wire_key(&s->x.out, w->keys[0]);
}

static void ask_multi_get(struct ddp_store *s, const struct waiting *w)
{
    store_put_keys(s, WIRE_MULTI_GET, w->keys, w->nkeys);
}

static int take_values(struct ddp_store *s, const struct waiting *w, struct ddp_err *err)
{
    for (size_t i = 0; i < w->nkeys; i++) {
        if (store_read_value(s, &w->values[i], err) < 0)
            return -1;
    }
    return 0;
}

static void ask_pop(struct ddp_store *s, const struct waiting *w)
{
    wire_op(&s->x.out, WIRE_QUEUE_POP);
    wire_key(&s->x.out, w->keys[0]);
}

/* The reply is the length before the pop, and an element unless that was 0. */
static int take_popped(struct ddp_store *s, const struct waiting *w, struct ddp_err *err)
{
    int64_t length;
    if (store_read_i64(s, &length, err) < 0)
        return -1;
    return length > 0 ? store_read_value(s, w->values, err) : 0;
}

/* -- missing keys -- */

static const char *span_text(int64_t ms, char text[32])
{
    if (ms % 1000 == 0)
        snprintf(text, 32, "%" PRId64 " s", ms / 1000);
    else
        snprintf(text, 32, "%" PRId64 " ms", ms);
    return text;
}

struct missing {
    size_t n, named, which[NAMED_MAX];
};

/* One CHECK per key, many in a write. */
static int find_missing(struct ddp_store *s, const char *const *keys, size_t nkeys,
                        struct missing *m)
{
    *m = (struct missing){0};
    for (size_t from = 0; from < nkeys; from += ASKED_ABOUT) {
        size_t n = nkeys - from < ASKED_ABOUT ? nkeys - from : ASKED_ABOUT;
        unsigned char gone;
        s->x.deadline = now_ms() + GRACE_MS;
        if (exchange_begin(&s->x, NULL) < 0)
            return -1;
        for (size_t i = from; i < from + n; i++)
            store_put_keys(s, WIRE_CHECK, &keys[i], 1);
        if (store_ask(s, NULL) < 0)
            return -1;
        for (size_t i = from; i < from + n; i++) {
            if (store_read_u8(s, &gone, NULL) < 0)
                return -1;
            if (gone && m->named < NAMED_MAX)
                m->which[m->named++] = i;
            m->n += gone;
        }
    }
    return 0;
}

/* "'a', 'b' and 3 more", or without `keys` their numbers; the caller frees. */
static char *missing_text(const struct missing *m, const char *const *keys)
{
    char *text = NULL;
    for (size_t i = 0; i < m->named; i++) {
        xappendf(&text, "%s", i ? ", " : "");
        if (keys)
            xappendf(&text, "'%.*s'", 400 / NAMED_MAX - 4, keys[m->which[i]]);
        else
            xappendf(&text, "%zu", m->which[i]);
    }
    if (m->n > m->named)
        xappendf(&text, " and %zu more", m->n - m->named);
    return text;
}

static int keys_expired(struct ddp_store *s, const char *const *keys, size_t nkeys,
                        struct ddp_err *err)
{
    char span[32];
    struct missing m;
    span_text(s->timeout_ms, span);
    if (nkeys == 1)
        return err_set(err, "timed out after %s waiting for key '%s'", span, keys[0]);
    if (find_missing(s, keys, nkeys, &m) < 0)
        return err_set(err, "timed out after %s waiting for %zu keys; then %s", span,
                       nkeys, s->x.why.text);
    if (m.n == 0)
        return err_set(err,
                       "timed out after %s waiting for %zu keys, the last of which "
                       "has just come",
                       span, nkeys);
    OWNED char *text = missing_text(&m, keys);
    err_set(err, "timed out after %s waiting for %zu of %zu keys: %s", span, m.n, nkeys,
            text);
    return -1;
}

static int ranks_expired(struct ddp_store *s, const char *name, const char *const *keys,
                         size_t size, struct ddp_err *err)
{
    char span[32];
    struct missing m;
    span_text(s->timeout_ms, span);
    if (find_missing(s, keys, size, &m) < 0)
        return err_set(err, "fence '%.64s' timed out after %s; then %s", name, span,
                       s->x.why.text);
    OWNED char *text = missing_text(&m, NULL);
    err_set(err, "fence '%.64s' timed out after %s: %zu of %zu ranks have not come: %s",
            name, span, m.n, size, text ? text : "all have now");
    return -1;
}

/* -- the calls -- */

/* Wait for keys, in several requests if needed; 1, 0, -1 as wait_then(). */
static int wait_chunks(struct ddp_store *s, const struct waiting *all,
                       struct ddp_err *err)
{
    const int64_t deadline = s->x.deadline;
    for (size_t from = 0; from < all->nkeys;) {
        struct waiting w = *all;
        w.keys = all->keys + from;
        w.nkeys = store_chunk(all->keys, from, all->nkeys);
        if (all->values)
            w.values = all->values + from;
        s->x.deadline = deadline; /* replies have been given more time */
        int rc = wait_then(s, &w, err);
        if (rc <= 0)
            return rc;
        from += w.nkeys;
        if (from < all->nkeys && exchange_begin(&s->x, err) < 0)
            return -1;
    }
    return 1;
}

int ddp_store_wait(struct ddp_store *s, const char *const *keys, size_t nkeys,
                   struct ddp_err *err)
{
    struct waiting w = {.keys = keys, .nkeys = nkeys};
    if (store_check_keys(keys, nkeys, err) < 0 || store_begin(s, err) < 0)
        return -1;
    int rc = wait_chunks(s, &w, err);
    return rc == 0 ? keys_expired(s, keys, nkeys, err) : rc < 0 ? -1 : 0;
}

static int get_values(struct ddp_store *s, const struct waiting *w, struct ddp_err *err)
{
    for (size_t i = 0; i < w->nkeys; i++) /* they can be freed at any time */
        w->values[i] = (struct ddp_value){0};
    int rc = wait_chunks(s, w, err);
    if (rc <= 0)
        ddp_values_free(w->values, w->nkeys);
    return rc;
}

int ddp_store_get(struct ddp_store *s, const char *key, struct ddp_value *value,
                  struct ddp_err *err)
{
    struct waiting w = {&key, 1, ask_get, take_values, value};
    if (store_check_key(key, err) < 0 || store_begin(s, err) < 0)
        return -1;
    int rc = get_values(s, &w, err);
    return rc == 0 ? keys_expired(s, &key, 1, err) : rc < 0 ? -1 : 0;
}

int ddp_store_multi_get(struct ddp_store *s, const char *const *keys, size_t nkeys,
                        struct ddp_value *values, struct ddp_err *err)
{
    struct waiting w = {keys, nkeys, ask_multi_get, take_values, values};
    if (store_check_keys(keys, nkeys, err) < 0 || store_begin(s, err) < 0)
        return -1;
    int rc = get_values(s, &w, err);
    return rc == 0 ? keys_expired(s, keys, nkeys, err) : rc < 0 ? -1 : 0;
}

int ddp_store_queue_pop(struct ddp_store *s, const char *key, struct ddp_value *value,
                        struct ddp_err *err)
{
    struct waiting w = {&key, 1, ask_pop, take_popped, value};
    if (store_check_key(key, err) < 0 || store_check_queues(s, key, err) < 0 ||
        store_begin(s, err) < 0)
        return -1;
    const int64_t deadline = s->x.deadline;
    *value = (struct ddp_value){0};
    int rc = 1;
    while (rc > 0 && !value->data) { /* again if another client was faster */
        s->x.deadline = deadline;
        if (exchange_begin(&s->x, err) < 0)
            return -1;
        rc = wait_then(s, &w, err);
    }
    if (rc < 0)
        return -1;
    /* an element that came after a cancelled wait is not lost */
    return value->data ? 0 : keys_expired(s, &key, 1, err);
}

/* "<name>/<rank>" for all ranks, in one piece of memory; the caller frees the array. */
static char **fence_keys(const char *name, size_t size)
{
    size_t room = strlen(name) + 12;
    char **keys = malloc(size * (sizeof *keys + room));
    char *at = keys ? (char *)(keys + size) : NULL;
    for (size_t r = 0; keys && r < size; r++, at += room) {
        snprintf(at, room, "%s/%zu", name, r);
        keys[r] = at;
    }
    return keys;
}

int ddp_store_fence(struct ddp_store *s, const char *name, int rank, int size,
                    const void *data, size_t ndata, struct ddp_value *values,
                    struct ddp_err *err)
{
    if (size < 1 || rank < 0 || rank >= size)
        return err_set(err, "fence '%.64s': there is no rank %d of %d", name, rank, size);
    OWNED char **keys = fence_keys(name, (size_t)size);
    if (!keys)
        return err_set(err, "not enough memory for a fence of %d ranks", size);
    const char *const *ro = (const char *const *)keys;
    struct waiting w = {ro, (size_t)size, ask_multi_get, take_values, values};
    int rc = -1;
    if (store_check_value(keys[size - 1], ndata, err) == 0 && store_begin(s, err) == 0) {
        wire_op(&s->x.out, WIRE_SET);
        wire_key(&s->x.out, keys[rank]);
        wire_str(&s->x.out, data, ndata);
        rc = get_values(s, &w, err);
        if (rc == 0)
            ranks_expired(s, name, ro, (size_t)size, err);
    }
    return rc > 0 ? 0 : -1;
}

/* The server's own barrier. On timeout its key has the number of clients that arrived. */
static int barrier_there(struct ddp_store *s, const char *key, int64_t size,
                         struct ddp_err *err)
{
    enum release how;
    struct ddp_value count = {0};
    char span[32];

    wire_op(&s->x.out, WIRE_BARRIER);
    wire_key(&s->x.out, key);
    wire_u64(&s->x.out, (uint64_t)size);
    if (exchange_send(&s->x, err) < 0 || await(s, &how, err) < 0)
        return -1;
    if (how == RELEASED)
        return 0;
    if (how == RELEASED_LATE)
        return read_cancelled(s, err);
    if (exchange_begin(&s->x, err) < 0)
        return -1;
    wire_op(&s->x.out, WIRE_GET);
    wire_key(&s->x.out, key);
    if (store_ask(s, err) < 0 || store_read_value(s, &count, err) < 0)
        return -1;
    err_set(err, "barrier '%.64s' timed out after %s: %.20s of %" PRId64 " have arrived",
            key, span_text(s->timeout_ms, span), (char *)count.data, size);
    free(count.data);
    return -1;
}

/* The barrier of PyTorch's PrefixStore, by other calls and with the same keys: for
 * servers without the opcode. */
static int barrier_here(struct ddp_store *s, const char *key, int64_t size,
                        struct ddp_err *err)
{
    char span[32];
    OWNED char *members = xasprintf("%s/num_members", key);
    OWNED char *last = xasprintf("%s/last_member", key);
    const char *const keys[] = {last};
    struct waiting w = {.keys = keys, .nkeys = 1};
    int64_t count, deadline = s->x.deadline;

    int rc = ddp_store_add(s, members, 1, &count, err);
    if (rc == 0 && count == size)
        rc = ddp_store_set(s, last, "1", 1, err);
    s->x.deadline = deadline;
    if (rc == 0 && (rc = exchange_begin(&s->x, err)) == 0) {
        rc = wait_then(s, &w, err);
        if (rc == 0 && (rc = ddp_store_add(s, members, 0, &count, err)) == 0)
            rc = err_set(err,
                         "barrier '%.64s' timed out after %s: %" PRId64 " of %" PRId64
                         " have arrived",
                         key, span_text(s->timeout_ms, span), count, size);
        else if (rc == 1)
            rc = 0;
    }
    return rc;
}

int ddp_store_barrier(struct ddp_store *s, const char *key, int64_t size,
                      struct ddp_err *err)
{
    if (size < 1)
        return err_set(err, "barrier '%.64s': size %" PRId64 " is not a number of ranks",
                       key, size);
    if (store_check_key(key, err) < 0 || store_begin(s, err) < 0)
        return -1;
    return s->in_order ? barrier_there(s, key, size, err)
                       : barrier_here(s, key, size, err);
}
