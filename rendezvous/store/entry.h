/* rendezvous/store/entry.h - inside the store: its spaces, and the keys of a space
 *
 * An entry exists while its key has a value, a queue, a waiter or a watcher; only
 * space_tidy() removes it. Most entries have a value alone, so the rest is in `more`.
 */
#ifndef RENDEZVOUS_STORE_ENTRY_H
#define RENDEZVOUS_STORE_ENTRY_H

#include "include/ddprun/err.h"
#include "rendezvous/store/table.h"

struct queue_item {
    struct queue_item *next; /* owned */
    struct blob *blob;       /* owned */
};

/* Fields that few keys have; an entry with none of them and no value is removed. */
struct entry_more {
    struct queue_item *queue, *queue_tail; /* owned */
    size_t queue_len;
    struct waitlink *links; /* of wait sets that name this key; owned by those */
    struct waiter *barrier; /* borrowed: the first to come first */
    struct watch *watches;  /* borrowed */
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

/* Roughly what a key, a queued value, a wait set or a watch costs of max_bytes besides
 * its bytes. */
enum { OVERHEAD = 96 };

/* Release `less` and reserve `more` of the store's bytes; fails at the limit. */
int space_charge(struct space *s, size_t less, size_t more, struct ddp_err *err);
struct entry *space_find(const struct space *s, struct bytes key);
/* Find or create; the second also creates `more`. A key is charged for as long as its
 * entry exists. NULL: the store is full, or no memory. */
struct entry *space_entry(struct space *s, struct bytes key, struct ddp_err *err);
struct entry *space_entry_more(struct space *s, struct bytes key, struct ddp_err *err);
void space_tidy(struct space *s, struct entry *e); /* removes an entry that is empty */

bool space_present(const struct space *s, struct bytes key);
static inline bool entry_present(const struct entry *e)
{
    return e->has_value || (e->more && e->more->queue);
}

#endif
