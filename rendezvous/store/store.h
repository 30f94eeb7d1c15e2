/* rendezvous/store/store.h - all key spaces of one server
 *
 * Each scope is a key space of its own: a job's second attempt must not read the
 * addresses of the dead. Spaces come and go with their users; dropping one forgets its
 * keys at once.
 */
#ifndef RENDEZVOUS_STORE_STORE_H
#define RENDEZVOUS_STORE_STORE_H

#include "rendezvous/store/space.h"

struct store;

/* `max_bytes` bounds keys, values and what is waited for, all spaces together; 0: no
 * bound. */
struct store *store_create(size_t max_bytes);
/* Every space must have been closed. */
void store_destroy(struct store *s);

/* The space of a scope, made when there is none; each open wants a space_close(). A space
 * keeps its keys when its last user leaves. */
struct space *store_open(struct store *s, unsigned scope);
void space_close(struct space *sp);

/* Forget every key of a scope; its waiters end with WAIT_DROPPED. Who has it open goes on
 * with an emptied space that nobody else can open any more. */
void store_drop(struct store *s, unsigned scope);

size_t store_keys(const struct store *s);
size_t store_waiters(const struct store *s);
size_t store_bytes(const struct store *s);

#endif
