/* rendezvous/client/exchange.h - one connection: send requests, receive replies
 *
 * Everything ends at `deadline`, which the caller sets before each call. An exchange is
 * broken when the peer closes, when the kernel reports an error, or when the deadline
 * passes within a request or a reply: the socket is closed, and all later calls fail with
 * the first error.
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
    struct wire out;    /* the request being built */
    struct ddp_err why; /* valid when broken */
    char *peer;         /* owned: "'host' port 29500", for error texts */
    size_t in_at, in_n; /* unread bytes: in[in_at .. in_n) */
    unsigned char in[16384];
};

/* Connect before x->deadline; a refused connection is retried. */
int exchange_open(struct exchange *x, const char *host, int port, struct ddp_err *err);
void exchange_close(struct exchange *x);

/* Start a new request; fails when the exchange is broken. */
int exchange_begin(struct exchange *x, struct ddp_err *err);
/* Send x->out. */
int exchange_send(struct exchange *x, struct ddp_err *err);
/* Read exactly `size` bytes of the reply. */
int exchange_read(struct exchange *x, void *to, size_t size, struct ddp_err *err);
/* Wait until there is something to read: 1, 0 at the deadline (the exchange is not
 * broken), or -1. */
int exchange_poll(struct exchange *x, struct ddp_err *err);

/* Break the exchange, after a malformed reply. Returns -1. */
int exchange_break(struct exchange *x, struct ddp_err *err, const char *what);

#endif
