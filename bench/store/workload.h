/* bench/store/workload.h - what the load generator says, and what must come back
 *
 * An exchange is bytes to send and the reply they must get; a workload is one or more of
 * them in turn. All clients share one, but for a piece of their own that goes in front of
 * the first.
 */
#ifndef BENCH_STORE_WORKLOAD_H
#define BENCH_STORE_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kind {
    KIND_DDP,   /* our server: answers in order */
    KIND_LIBUV, /* PyTorch's: later requests overtake a wait */
    KIND_REDIS,
    KIND_ECHO, /* gives back what it gets: the floor */
};

struct buf {
    unsigned char *data; /* owned */
    size_t n, room;
};

void buf_add(struct buf *b, const void *data, size_t n);
void buf_finish(struct buf *b);

struct exchange {
    struct buf request;
    struct buf reply;   /* every byte of it is compared, unless it is empty: */
    size_t reply_bytes; /* then so many bytes must come, */
    size_t reply_lines; /* or so many lines */
};

struct workload {
    struct exchange steps[2];
    size_t nsteps, ops; /* operations in one round of the steps */
};

struct shape {
    enum kind kind;
    const char *op;
    size_t clients, depth, size, keys;
};

/* The handshake of one client (TCPStore: VALIDATE and PING; Redis: PING). */
void workload_hello(enum kind kind, struct exchange *x);
/* Sets the keys that the operations read; false: this kind has no such operation. */
bool workload_prepare(const struct shape *s, struct exchange *x);
/* get, set, add, waitget, mget: `depth` operations in one write. */
bool workload_make(const struct shape *s, struct workload *w);
/* What a fence says: the shared part, and the part of client `i`. `round` makes new keys.
 */
void workload_fence(const struct shape *s, size_t round, struct workload *w);
void workload_fence_own(const struct shape *s, size_t round, size_t i, struct buf *own);
/* One waits, another wakes. Redis: a subscriber and a publisher. */
void workload_wake(const struct shape *s, size_t round, struct exchange *waiter,
                   struct exchange *waker);
/* Redis: must be said by each waiter once. Empty elsewhere. */
void workload_subscribe(const struct shape *s, struct exchange *x);

void exchange_finish(struct exchange *x);

#endif
