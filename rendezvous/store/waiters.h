/* rendezvous/store/waiters.h - clients that wait for keys
 *
 * A waiter names keys. Its `end` is called once: when all keys are present at the same
 * time, or when its space is dropped; never if it is cancelled before. Waiters know
 * neither sockets nor deadlines: the owner embeds a struct waiter and cancels it at its
 * deadline.
 */
#ifndef RENDEZVOUS_STORE_WAITERS_H
#define RENDEZVOUS_STORE_WAITERS_H

#include "include/ddprun/err.h"
#include "rendezvous/store/bytes.h"

struct space;
struct waiter;

enum wait_end { WAIT_READY, WAIT_DROPPED };

/* Called from inside the write that made the keys present, with the waiter idle again: it
 * must record the fact and return without using the space. */
typedef void (*wait_end_fn)(struct waiter *w, enum wait_end how);

struct waiter {
    wait_end_fn end;            /* set by the owner */
    struct waiter *prev, *next; /* the rest is waiters.c's; all zero: idle */
    struct waitset *set;        /* waits for keys */
    struct entry *barrier;      /* waits at this key's barrier */
    struct space *space;
    uint64_t order; /* of arrival */
};

/* Wait for all keys of the list. `*ready`: they are all present, `w` is still idle and
 * `end` will not be called. Returns -1 when there is no memory, or the store is full. */
int waiter_start(struct space *s, struct waiter *w, struct packed keys, bool *ready,
                 struct ddp_err *err);
void waiter_cancel(struct waiter *w); /* an idle one is fine */
bool waiter_waits(const struct waiter *w);
bool waiter_all_present(const struct space *s, struct packed keys);

/* For space.c. */
/* Call when a key has become present, or was written while present. */
void waiters_written(struct space *s, struct entry *e);
void waiters_appeared(struct entry *e);
void waiters_vanished(struct entry *e);
void waiters_pushed(struct space *s, struct entry *e); /* wakes one */
void waiters_barrier_add(struct space *s, struct entry *e, struct waiter *w);
void waiters_barrier_release(struct space *s, struct entry *e);
void waiters_drop_all(struct space *s);

#endif
