/* rendezvous/store/waiters.c - see waiters.h
 *
 * Waiters with byte-identical lists share one wait set. Each of its keys links to the
 * set, which counts the missing keys: a key that appears costs one decrement per set, not
 * per waiter. 2,000 clients that wait for the same 2,000 keys cost 2,000 decrements in
 * all. A deleted key counts as missing again, so no waiter is released while one of its
 * keys is missing.
 *
 * A complete set remains only for a queue: a push wakes one waiter, the others wait for
 * the next push or write.
 */
#include "rendezvous/store/waiters.h"

#include "common/err.h"
#include "rendezvous/store/entry.h"

#include <assert.h>
#include <stdlib.h>
#include <utlist.h>

enum {
    FEW = 8,         /* keys to look up before a wait set is used */
    FIRST_SETS = 16, /* chains */
};

struct waitlink {
    struct waitset *set;
    struct entry *entry;
    struct waitlink *prev, *next; /* in the entry's list */
};

struct waitset {
    struct waitset *next;   /* in its chain */
    struct waitset *firing; /* in the list of a write that completes several */
    struct space *space;
    uint64_t hash;
    uint8_t *keys; /* owned, packed */
    size_t size, count, missing;
    struct waiter *waiters;  /* the first to come first; never empty but while the set
                              * is made or ends */
    struct waitlink links[]; /* one for each key */
};

/* -- lists ------------------------------------------------------------------------- */

static void waiter_idle(struct waiter *w)
{
    w->space->store->nwaiters--;
    *w = (struct waiter){.end = w->end};
}

static void waiter_begin(struct space *s, struct waiter *w)
{
    w->space = s;
    w->order = s->store->order++;
    s->store->nwaiters++;
}

bool waiter_waits(const struct waiter *w)
{
    return w->set || w->barrier;
}

static void list_end(struct waiter **list, enum wait_end how)
{
    for (struct waiter *w = *list, *next; w; w = next) {
        next = w->next;
        waiter_idle(w);
        w->end(w, how);
    }
    *list = NULL;
}

/* -- sets -------------------------------------------------------------------------- */

static struct waitset **set_chain(const struct space *s, uint64_t hash)
{
    return &s->sets[hash & (s->sets_room - 1)];
}

static struct waitset *set_find(const struct space *s, uint64_t hash, struct packed keys)
{
    if (s->nsets == 0)
        return NULL;
    struct waitset *set;
    LL_FOREACH (*set_chain(s, hash), set) {
        if (set->hash == hash && set->size == keys.size &&
            memcmp(set->keys, keys.data, keys.size) == 0)
            break;
    }
    return set;
}

static int sets_grow(struct space *s)
{
    if (s->nsets < s->sets_room)
        return 0;
    size_t old_room = s->sets_room;
    struct waitset **old = s->sets;
    size_t room = old_room ? old_room * 2 : FIRST_SETS;
    struct waitset **sets = calloc(room, sizeof(struct waitset *));
    if (!sets)
        return -1;
    s->sets = sets;
    s->sets_room = room;
    for (size_t i = 0; i < old_room; i++) {
        struct waitset *set, *next;
        LL_FOREACH_SAFE(old[i], set, next)
        LL_PREPEND(*set_chain(s, set->hash), set);
    }
    free(old);
    return 0;
}

static size_t set_cost(size_t size, size_t count)
{
    return size + count * sizeof(struct waitlink) + OVERHEAD;
}

static void set_free(struct waitset *set, size_t nlinked)
{
    for (size_t i = 0; i < nlinked; i++) {
        struct waitlink *l = &set->links[i];
        DL_DELETE(l->entry->more->links, l);
        space_tidy(set->space, l->entry);
    }
    set->space->store->bytes -= set_cost(set->size, set->count);
    free(set->keys);
    free(set);
}

static void set_remove(struct waitset *set)
{
    LL_DELETE(*set_chain(set->space, set->hash), set);
    set->space->nsets--;
    set_free(set, set->count);
}

static struct waitset *set_create(struct space *s, uint64_t hash, struct packed keys,
                                  struct ddp_err *err)
{
    size_t cost = set_cost(keys.size, keys.count);
    if (space_charge(s, 0, cost, err) < 0)
        return NULL;
    struct waitset *set = calloc(1, sizeof *set + keys.count * sizeof *set->links);
    uint8_t *copy = malloc(keys.size);
    if (!set || !copy || sets_grow(s) < 0) {
        free(set);
        free(copy);
        s->store->bytes -= cost;
        err_set(err, "no memory to wait for %zu keys", keys.count);
        return NULL;
    }
    *set = (struct waitset){
        .space = s, .hash = hash, .keys = copy, .size = keys.size, .count = keys.count};
    memcpy(copy, keys.data, keys.size);
    const uint8_t *at = copy;
    for (size_t i = 0; i < keys.count; i++) {
        struct entry *e = space_entry_more(s, packed_next(&at), err);
        if (!e) {
            set_free(set, i);
            return NULL;
        }
        struct waitlink *l = &set->links[i];
        *l = (struct waitlink){.set = set, .entry = e};
        DL_PREPEND(e->more->links, l);
        set->missing += !entry_present(e);
    }
    LL_PREPEND(*set_chain(s, hash), set);
    s->nsets++;
    return set;
}

/* -- waiting ------------------------------------------------------------------------ */

bool waiter_all_present(const struct space *s, struct packed keys)
{
    const uint8_t *at = keys.data;
    for (size_t i = 0; i < keys.count; i++) {
        if (!space_present(s, packed_next(&at)))
            return false;
    }
    return true;
}

int waiter_start(struct space *s, struct waiter *w, struct packed keys, bool *ready,
                 struct ddp_err *err)
{
    assert(!waiter_waits(w));
    *ready = false;
    if (keys.count <= FEW && waiter_all_present(s, keys)) {
        *ready = true;
        return 0;
    }
    uint64_t hash = hash_bytes(s->seed, keys.data, keys.size);
    struct waitset *set = set_find(s, hash, keys);
    if (set ? set->missing == 0 : keys.count > FEW && waiter_all_present(s, keys)) {
        *ready = true;
        return 0;
    }
    if (!set)
        set = set_create(s, hash, keys, err);
    if (!set)
        return -1;
    waiter_begin(s, w);
    w->set = set;
    DL_APPEND(set->waiters, w);
    return 0;
}

void waiter_cancel(struct waiter *w)
{
    struct waitset *set = w->set;
    struct entry *barrier = w->barrier;
    struct space *s = w->space;
    if (set)
        DL_DELETE(set->waiters, w);
    else if (barrier)
        DL_DELETE(barrier->more->barrier, w);
    else
        return;
    waiter_idle(w);
    if (set && !set->waiters)
        set_remove(set);
    else if (barrier)
        space_tidy(s, barrier);
}

/* -- waking ------------------------------------------------------------------------- */

void waiters_appeared(struct entry *e)
{
    for (struct waitlink *l = e->more->links; l; l = l->next)
        l->set->missing--;
}

void waiters_vanished(struct entry *e)
{
    for (struct waitlink *l = e->more->links; l; l = l->next)
        l->set->missing++;
}

/* Gathered before anything is freed: a list that names a key twice has two links here. */
void waiters_written(struct space *s, struct entry *e)
{
    struct waitset *complete = NULL, *next;
    for (struct waitlink *l = e->more->links; l; l = l->next) {
        if (l->set->missing == 0 && l->set->waiters) {
            l->set->firing = complete;
            complete = l->set;
            list_end(&l->set->waiters, WAIT_READY);
        }
    }
    for (; complete; complete = next) {
        next = complete->firing;
        set_remove(complete);
    }
}

void waiters_pushed(struct space *s, struct entry *e)
{
    struct waitset *first = NULL;
    for (struct waitlink *l = e->more->links; l; l = l->next) {
        if (l->set->missing == 0 &&
            (!first || l->set->waiters->order < first->waiters->order))
            first = l->set;
    }
    if (!first)
        return;
    struct waiter *w = first->waiters;
    DL_DELETE(first->waiters, w);
    waiter_idle(w);
    w->end(w, WAIT_READY);
    if (!first->waiters)
        set_remove(first);
}

void waiters_barrier_add(struct space *s, struct entry *e, struct waiter *w)
{
    waiter_begin(s, w);
    w->barrier = e;
    DL_APPEND(e->more->barrier, w);
}

void waiters_barrier_release(struct space *s, struct entry *e)
{
    list_end(&e->more->barrier, WAIT_READY);
}

void waiters_drop_all(struct space *s)
{
    for (size_t i = 0; i < s->sets_room; i++) {
        while (s->sets[i]) {
            list_end(&s->sets[i]->waiters, WAIT_DROPPED);
            set_remove(s->sets[i]);
        }
    }
    for (size_t i = 0; i < s->table.room; i++) {
        struct entry *e = s->table.slots[i].entry;
        if (e && e->more)
            list_end(&e->more->barrier, WAIT_DROPPED);
    }
}
