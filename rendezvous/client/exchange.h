/* rendezvous/client/exchange.h - one connection: whole requests out, exact replies in
 *
 * Everything ends at `deadline`, which the caller sets before each call. An exchange
 * breaks when the peer closes, when the kernel reports an error, or when a deadline
 * passes with a request or a reply half way; the socket is closed then, and everything
 * afterwards fails with the text of the first failure.
 */
#ifndef RENDEZVOUS_CLIENT_EXCHANGE_H
#define RENDEZVOUS_CLIENT_EXCHANGE_H

#include "include/ddprun/err.h"
#include "rendezvous/client/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exchange {
    int fd;             /* owned; -1 when broken */
    bool hung_up;       /* broken because the peer has closed it */
    int64_t deadline;   /* now_ms() scale */
    struct wire out;    /* the request that is being put together */
    struct ddp_err why; /* valid when broken */
    char *peer;         /* owned: "'host' port 29500", for error texts */
    size_t in_at, in_n; /* unread bytes: in[in_at .. in_n) */
    unsigned char in[16384];
};

/* Connects before x->deadline; a refused connection is tried again. */
int exchange_open(struct exchange *x, const char *host, int port, struct ddp_err *err);
void exchange_close(struct exchange *x);

/* Starts a new request; fails when the exchange is broken. */
int exchange_begin(struct exchange *x, struct ddp_err *err);
/* Sends what is in x->out. */
int exchange_send(struct exchange *x, struct ddp_err *err);
/* Exactly `size` bytes of the reply. */
int exchange_read(struct exchange *x, void *to, size_t size, struct ddp_err *err);
/* Is there anything to read before the deadline? 1, 0 (time is up, nothing is broken)
 * or -1. */
int exchange_poll(struct exchange *x, struct ddp_err *err);

/* Breaks it, for a reply that makes no sense. Returns -1. */
int exchange_break(struct exchange *x, struct ddp_err *err, const char *what);

#endif
