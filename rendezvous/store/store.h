/* rendezvous/store/store.h - all key spaces of one server
 *
 * Each scope is a separate key space: the second attempt of a job must not read addresses
 * that the first one published. Dropping a scope deletes its keys at once.
 */
#ifndef RENDEZVOUS_STORE_STORE_H
#define RENDEZVOUS_STORE_STORE_H

#include "rendezvous/store/space.h"

struct store;

/* `max_bytes` limits keys, values, queues, watches and lists of awaited keys over all
 * spaces; 0: no limit. */
struct store *store_create(size_t max_bytes);
/* Every space must have been closed. */
void store_destroy(struct store *s);

/* The space of a scope, created if needed; each store_open() needs a space_close(). A
 * space keeps its keys when its last user closes it. */
struct space *store_open(struct store *s, unsigned scope);
void space_close(struct space *sp);

/* Delete every key of a scope; its waiters end with WAIT_DROPPED. A client that has it
 * open keeps an empty space, which store_open() no longer returns. */
void store_drop(struct store *s, unsigned scope);

size_t store_keys(const struct store *s);
size_t store_waiters(const struct store *s);
size_t store_bytes(const struct store *s);

#endif
