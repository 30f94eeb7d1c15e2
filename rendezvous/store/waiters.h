/* rendezvous/store/waiters.h - clients that wait for keys
 *
 * A waiter names keys and is answered exactly once: when all of them are present at the
 * same moment, or when its space is dropped; or never, when it is cancelled first. It
 * knows neither sockets nor deadlines: whoever waits embeds a struct waiter and cancels
 * it when time is up.
 */
#ifndef RENDEZVOUS_STORE_WAITERS_H
#define RENDEZVOUS_STORE_WAITERS_H

#include "include/ddprun/err.h"
#include "rendezvous/store/bytes.h"

struct space;
struct waiter;

enum wait_end { WAIT_READY, WAIT_DROPPED };

/* The waiter is idle again when it is called. Called from inside the write that made the
 * keys present: it must note the fact and return, not use the space. */
typedef void (*wait_end_fn)(struct waiter *w, enum wait_end how);

struct waiter {
    wait_end_fn end;            /* set by the owner */
    struct waiter *prev, *next; /* the rest is waiters.c's; all zero: idle */
    struct waitset *set;        /* waits for keys */
    struct entry *barrier;      /* waits at this key's barrier */
    struct space *space;
    uint64_t order; /* of coming */
};

/* Wait for all keys of the list. `*ready`: they are all present, `w` is still idle and
 * `end` will not be called. Returns -1 when there is no memory, or the store is full. */
int waiter_start(struct space *s, struct waiter *w, struct packed keys, bool *ready,
                 struct ddp_err *err);
void waiter_cancel(struct waiter *w); /* an idle one is fine */
bool waiter_waits(const struct waiter *w);

#endif
