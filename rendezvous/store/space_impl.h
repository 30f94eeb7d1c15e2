/* rendezvous/store/space_impl.h - what store.c, space.c, entry.c and waiters.c share */
#ifndef RENDEZVOUS_STORE_SPACE_IMPL_H
#define RENDEZVOUS_STORE_SPACE_IMPL_H

#include "rendezvous/store/space.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/table.h"

/* First in, first out; members are linked through their own prev and next. */
struct waiter_list {
    struct waiter *head, *tail;
};

struct queue_item {
    struct queue_item *next; /* owned */
    struct blob *blob;       /* owned */
};

/* Fields that few keys have; an entry with none of them and no value is removed. */
struct entry_more {
    struct queue_item *queue, *queue_tail; /* owned */
    size_t queue_len;
    struct waitlink *links;     /* of wait sets that name this key; owned by those */
    struct waiter_list barrier; /* borrowed */
    struct watch *watches;      /* borrowed */
};

struct space {
    struct store *store; /* borrowed; owner, or former owner when dropped */
    struct space *next;  /* in the store's list */
    unsigned scope;
    size_t users;
    bool dropped;
    struct table table;
    struct hash_seed seed;
    size_t count; /* keys that have a value */
    uint64_t version;
    struct waitset **sets; /* owned: chains by hash of the list, waiters.c */
    size_t sets_room, nsets;
};

struct store {
    struct space *spaces; /* owned */
    size_t max_bytes, bytes;
    size_t nkeys, nwaiters;
    uint64_t order;   /* of the next waiter */
    uint64_t version; /* of the latest write in any space */
    struct hash_seed seed;
};

/* Roughly what a key, a queued value or a wait set costs of max_bytes besides its bytes.
 */
enum { OVERHEAD = 96 };

/* entry.c */
/* Release `less` and reserve `more` of the store's bytes; fails at the limit. */
int space_charge(struct space *s, size_t less, size_t more, struct ddp_err *err);
struct entry *space_find(const struct space *s, struct bytes key);
/* Find or create; the second also creates `more`. NULL: no memory. */
struct entry *space_entry(struct space *s, struct bytes key);
struct entry *space_entry_more(struct space *s, struct bytes key);
void space_tidy(struct space *s, struct entry *e); /* removes an entry that is empty */

static inline bool entry_present(const struct entry *e)
{
    return e->has_value || (e->more && e->more->queue);
}

/* space.c */
void space_empty(struct space *s);  /* every key; waiters must have ended */
void space_finish(struct space *s); /* frees all, the space too */

/* waiters.c */
/* Call when a key has become present, or was written while present. */
void waiters_written(struct space *s, struct entry *e);
void waiters_appeared(struct entry *e);
void waiters_vanished(struct entry *e);
void waiters_pushed(struct space *s, struct entry *e); /* wakes one */
void waiters_barrier_add(struct space *s, struct entry *e, struct waiter *w);
void waiters_barrier_release(struct space *s, struct entry *e);
void waiters_drop_all(struct space *s);

#endif
