/* rendezvous/store/table.h - the hash table of one space
 *
 * Open addressing over (hash, entry) pairs, linear probing; removing shifts the followers
 * back, so there are no tombstones. Entries are allocated one by one, so their
 * addresses are stable: waiters and watchers have them. The table never shrinks.
 */
#ifndef RENDEZVOUS_STORE_TABLE_H
#define RENDEZVOUS_STORE_TABLE_H

#include "rendezvous/store/blob.h"
#include "rendezvous/store/bytes.h"
#include "rendezvous/store/hash.h"

enum { VALUE_TINY = 40 }; /* up to this size a value is in its entry */

struct entry_more; /* fields that few entries have: entry.h */

struct entry {
    uint64_t hash;
    size_t value_size;
    union {
        unsigned char tiny[VALUE_TINY]; /* value_size <= VALUE_TINY */
        struct blob *blob;              /* owned otherwise */
    };
    struct entry_more *more; /* owned, or NULL */
    uint32_t key_size;
    bool has_value;
    unsigned char key[];
};

struct table {
    struct table_slot {
        uint64_t hash;
        struct entry *entry; /* owned; NULL: empty */
    } * slots;               /* owned */
    size_t room, used;       /* room is 0 or a power of two */
};

struct entry *table_find(const struct table *t, uint64_t hash, struct bytes key);
/* Add an entry without a value for a new key. NULL: no memory. */
struct entry *table_add(struct table *t, uint64_t hash, struct bytes key);
/* Remove and free the entry; the caller has freed its value and `more`. */
void table_remove(struct table *t, struct entry *e);
void table_finish(struct table *t); /* frees the slots, not the entries */

#endif
