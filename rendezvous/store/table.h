/* rendezvous/store/table.h - the hash table of one space
 *
 * Open addressing over (hash, entry) pairs, linear probing; removing shifts the followers
 * back, so there are no tombstones. Entries are allocated one by one: their addresses
 * stay, which waiters and watchers rely on. The table never shrinks.
 */
#ifndef RENDEZVOUS_STORE_TABLE_H
#define RENDEZVOUS_STORE_TABLE_H

#include "rendezvous/store/blob.h"
#include "rendezvous/store/bytes.h"
#include "rendezvous/store/hash.h"

enum { VALUE_TINY = 40 }; /* up to here a value lives in its entry */

struct entry_more; /* what few entries have: space_impl.h */

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
/* A new entry without a value for a key that is not there. NULL: no memory. */
struct entry *table_add(struct table *t, uint64_t hash, struct bytes key);
/* Takes the entry out and frees it; its value and `more` are the caller's. */
void table_remove(struct table *t, struct entry *e);
void table_finish(struct table *t); /* frees the slots, not the entries */

#endif
