/* rendezvous/store/space.c - see space.h
 *
 * Every change of a value goes through space_write(), which notifies waiters and
 * watchers.
 */
#include "rendezvous/store/space.h"

#include "common/err.h"
#include "rendezvous/store/entry.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* -- values ------------------------------------------------------------------------- */

static struct view entry_view(const struct entry *e)
{
    if (e->value_size <= VALUE_TINY)
        return (struct view){{e->tiny, e->value_size}, NULL};
    return (struct view){{e->blob->data, e->value_size}, e->blob};
}

static void value_free(struct entry *e)
{
    if (e->has_value && e->value_size > VALUE_TINY)
        blob_unref(e->blob);
}

static int value_put(struct entry *e, struct bytes value)
{
    if (value.size <= VALUE_TINY) {
        unsigned char tiny[VALUE_TINY];
        if (value.size > 0)
            memcpy(tiny, value.data, value.size);
        value_free(e);
        memcpy(e->tiny, tiny, value.size);
    } else {
        struct blob *b = blob_create(value.size);
        if (!b)
            return -1;
        memcpy(b->data, value.data, value.size);
        value_free(e);
        e->blob = b;
    }
    e->value_size = value.size;
    e->has_value = true;
    return 0;
}

static int value_append(struct entry *e, struct bytes more)
{
    if (e->value_size > VALUE_TINY) {
        if (blob_append(&e->blob, more.data, more.size) < 0)
            return -1;
    } else if (e->value_size + more.size > VALUE_TINY) {
        struct blob *b = blob_create(e->value_size + more.size);
        if (!b)
            return -1;
        memcpy(b->data, e->tiny, e->value_size);
        memcpy(b->data + e->value_size, more.data, more.size);
        e->blob = b;
    } else if (more.size > 0) {
        memcpy(e->tiny + e->value_size, more.data, more.size);
    }
    e->value_size += more.size;
    return 0;
}

/* -- writing ------------------------------------------------------------------------ */

static int no_memory(struct space *s, size_t less, size_t more, struct ddp_err *err)
{
    s->store->bytes = s->store->bytes + less - more;
    return err_set(err, "no memory for a value");
}

/* The old value, kept for watchers while the new one takes its place. */
struct kept {
    unsigned char tiny[VALUE_TINY];
    struct view view;
};

static void kept_init(struct kept *k, const struct entry *e)
{
    k->view = e->has_value ? entry_view(e) : (struct view){{k->tiny, 0}, NULL};
    if (k->view.blob) {
        blob_ref(k->view.blob);
    } else {
        memcpy(k->tiny, k->view.bytes.data, k->view.bytes.size);
        k->view.bytes.data = k->tiny;
    }
}

static void kept_finish(struct kept *k)
{
    blob_unref(k->view.blob);
}

static void notify_watches(struct entry *e, enum change how, const struct view *old,
                           const struct view *now)
{
    for (struct watch *w = e->more ? e->more->watches : NULL, *next; w; w = next) {
        next = w->next;
        w->changed(w, how, (struct bytes){e->key, e->key_size}, old, now);
    }
}

/* `was_present`, `had_value` and `old` describe the entry before the write. */
static void written(struct space *s, struct entry *e, bool was_present, bool had_value,
                    const struct kept *old, bool barrier_too)
{
    s->version = ++s->store->version;
    if (!had_value) {
        s->count++;
        s->store->nkeys++;
    }
    if (!e->more)
        return;
    if (e->more->watches) {
        struct view now = entry_view(e);
        notify_watches(e, had_value ? CHANGE_UPDATED : CHANGE_CREATED, &old->view, &now);
    }
    if (!was_present)
        waiters_appeared(e);
    if (barrier_too)
        waiters_barrier_release(s, e);
    waiters_written(s, e);
    space_tidy(s, e);
}

/* All changes of a value: `value` replaces it, or is appended. */
static int space_write(struct space *s, struct bytes key, struct bytes value, bool append,
                       bool barrier_too, struct ddp_err *err)
{
    struct entry *e = space_entry(s, key, err);
    if (!e)
        return -1;
    bool had = e->has_value, was_present = entry_present(e);
    append = append && had;
    size_t less = had && !append ? e->value_size : 0;
    size_t more = value.size;
    if (space_charge(s, less, more, err) < 0) {
        space_tidy(s, e);
        return -1;
    }
    struct kept old;
    bool watched = e->more && e->more->watches;
    if (watched)
        kept_init(&old, e);
    int rc = append ? value_append(e, value) : value_put(e, value);
    if (rc < 0) {
        rc = no_memory(s, less, more, err);
        space_tidy(s, e);
    } else {
        written(s, e, was_present, had, &old, barrier_too);
    }
    if (watched)
        kept_finish(&old);
    return rc;
}

int space_set(struct space *s, struct bytes key, struct bytes value, struct ddp_err *err)
{
    return space_write(s, key, value, false, true, err);
}

int space_append(struct space *s, struct bytes key, struct bytes value,
                 struct ddp_err *err)
{
    return space_write(s, key, value, true, true, err);
}

/* -- reading ------------------------------------------------------------------------ */

bool space_get(const struct space *s, struct bytes key, struct view *value)
{
    const struct entry *e = space_find(s, key);
    if (!e || !e->has_value)
        return false;
    *value = entry_view(e);
    return true;
}

size_t space_count(const struct space *s)
{
    return s->count;
}

uint64_t space_version(const struct space *s)
{
    return s->version;
}

void space_each(const struct space *s, void (*each)(struct bytes key, void *arg),
                void *arg)
{
    for (size_t i = 0; i < s->table.room; i++) {
        const struct entry *e = s->table.slots[i].entry;
        if (e && e->has_value)
            each((struct bytes){e->key, e->key_size}, arg);
    }
}

/* -- numbers ------------------------------------------------------------------------ */

/* As std::stoll in PyTorch's server: blanks, a sign, digits; the rest is ignored. Only
 * the first 63 bytes are read. */
static int number_read(const struct space *s, struct bytes key, int64_t *number,
                       struct ddp_err *err)
{
    struct view v;
    *number = 0;
    if (!space_get(s, key, &v))
        return 0;
    char text[64], shown_key[128], shown[128], *end;
    size_t n = v.bytes.size < sizeof text - 1 ? v.bytes.size : sizeof text - 1;
    memcpy(text, v.bytes.data, n);
    text[n] = '\0';
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno == ERANGE)
        return err_set(err, "cannot add to key '%s': its value '%s' is not a number",
                       bytes_show(key, shown_key, sizeof shown_key),
                       bytes_show(v.bytes, shown, sizeof shown));
    *number = value;
    return 0;
}

static int number_write(struct space *s, struct bytes key, int64_t number,
                        bool barrier_too, struct ddp_err *err)
{
    char text[24], *at = text + sizeof text;
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (number < 0)
        *--at = '-';
    struct bytes value = {at, (size_t)(text + sizeof text - at)};
    return space_write(s, key, value, false, barrier_too, err);
}

int space_add(struct space *s, struct bytes key, int64_t delta, int64_t *result,
              struct ddp_err *err)
{
    int64_t number;
    if (number_read(s, key, &number, err) < 0)
        return -1;
    *result = (int64_t)((uint64_t)number + (uint64_t)delta);
    return number_write(s, key, *result, true, err);
}

int space_barrier(struct space *s, struct bytes key, int64_t size, struct waiter *w,
                  bool *passed, struct ddp_err *err)
{
    int64_t come;
    if (number_read(s, key, &come, err) < 0)
        return -1;
    come = (int64_t)((uint64_t)come + 1);
    *passed = come >= size;
    if (number_write(s, key, come, *passed, err) < 0)
        return -1;
    if (!*passed) {
        struct entry *e = space_entry_more(s, key, err);
        if (!e)
            return -1;
        waiters_barrier_add(s, e, w);
    }
    return 0;
}

/* -- compare and set, delete --------------------------------------------------------- */

int space_compare_set(struct space *s, struct bytes key, struct bytes expected,
                      struct bytes desired, struct view *now, struct ddp_err *err)
{
    struct view current;
    bool there = space_get(s, key, &current);
    if (there ? !bytes_equal(current.bytes, expected) : expected.size > 0) {
        *now = there ? current : (struct view){expected, NULL};
        return 0;
    }
    if (space_set(s, key, desired, err) < 0)
        return -1;
    *now = (struct view){desired, NULL};
    return 0;
}

bool space_delete(struct space *s, struct bytes key)
{
    struct entry *e = space_find(s, key);
    if (!e || !e->has_value)
        return false;
    struct view old = entry_view(e);
    notify_watches(e, CHANGE_DELETED, &old, &(struct view){0});
    s->store->bytes -= e->value_size;
    value_free(e);
    e->has_value = false;
    e->value_size = 0;
    s->count--;
    s->store->nkeys--;
    s->version = ++s->store->version;
    if (e->more && !entry_present(e))
        waiters_vanished(e);
    space_tidy(s, e);
    return true;
}

/* -- queues ------------------------------------------------------------------------- */

int space_queue_push(struct space *s, struct bytes key, struct bytes value,
                     struct ddp_err *err)
{
    size_t cost = value.size + OVERHEAD;
    struct entry *e = space_entry_more(s, key, err);
    if (!e)
        return -1;
    if (space_charge(s, 0, cost, err) < 0) {
        space_tidy(s, e);
        return -1;
    }
    struct queue_item *item = malloc(sizeof *item);
    struct blob *blob = item ? blob_create(value.size) : NULL;
    if (!blob) {
        free(item);
        space_tidy(s, e);
        return no_memory(s, 0, cost, err);
    }
    if (value.size > 0)
        memcpy(blob->data, value.data, value.size);
    *item = (struct queue_item){.blob = blob};
    bool was_present = entry_present(e);
    struct entry_more *m = e->more;
    *(m->queue ? &m->queue_tail->next : &m->queue) = item;
    m->queue_tail = item;
    m->queue_len++;
    if (!was_present)
        waiters_appeared(e);
    waiters_pushed(s, e);
    return 0;
}

size_t space_queue_pop(struct space *s, struct bytes key, struct blob **value)
{
    struct entry *e = space_find(s, key);
    struct entry_more *m = e ? e->more : NULL;
    if (!m || !m->queue)
        return 0;
    struct queue_item *item = m->queue;
    size_t before = m->queue_len--;
    m->queue = item->next;
    *value = item->blob;
    s->store->bytes -= item->blob->size + OVERHEAD;
    free(item);
    if (!entry_present(e))
        waiters_vanished(e);
    space_tidy(s, e);
    return before;
}

size_t space_queue_len(const struct space *s, struct bytes key)
{
    const struct entry *e = space_find(s, key);
    return e && e->more ? e->more->queue_len : 0;
}

/* -- watchers ------------------------------------------------------------------------ */

int space_watch(struct space *s, struct bytes key, struct watch *w, struct ddp_err *err)
{
    struct entry *e = space_entry_more(s, key, err);
    if (!e)
        return -1;
    for (const struct watch *there = e->more->watches; there; there = there->next) {
        if (there->owner == w->owner)
            return 1;
    }
    if (space_charge(s, 0, OVERHEAD, err) < 0) {
        space_tidy(s, e);
        return -1;
    }
    w->space = s;
    w->entry = e;
    w->prev = NULL;
    w->next = e->more->watches;
    if (w->next)
        w->next->prev = w;
    e->more->watches = w;
    return 0;
}

void space_unwatch(struct watch *w)
{
    struct entry *e = w->entry;
    if (!e)
        return;
    *(w->prev ? &w->prev->next : &e->more->watches) = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->entry = NULL;
    w->space->store->bytes -= OVERHEAD;
    space_tidy(w->space, e);
}

/* -- the end ------------------------------------------------------------------------- */

static void more_free(struct space *s, struct entry_more *m)
{
    for (struct queue_item *item = m->queue, *next; item; item = next) {
        next = item->next;
        s->store->bytes -= item->blob->size + OVERHEAD;
        blob_unref(item->blob);
        free(item);
    }
    for (struct watch *w = m->watches; w; w = w->next) {
        w->entry = NULL;
        s->store->bytes -= OVERHEAD;
    }
    free(m);
}

void space_empty(struct space *s)
{
    for (size_t i = 0; i < s->table.room; i++) {
        struct entry *e = s->table.slots[i].entry;
        if (!e)
            continue;
        s->store->bytes -= e->value_size + e->key_size + OVERHEAD;
        value_free(e);
        if (e->more)
            more_free(s, e->more);
        free(e);
    }
    table_finish(&s->table);
    s->store->nkeys -= s->count;
    s->count = 0;
    s->version = ++s->store->version;
}

void space_finish(struct space *s)
{
    waiters_drop_all(s);
    space_empty(s);
    free(s->sets);
    free(s);
}
