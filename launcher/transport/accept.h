/* launcher/transport/accept.h - the listener that agents and peers connect to
 *
 * A caller gets an offer and must prove its key (link/handshake.h) within PROVE_MS of
 * connecting; sending bytes does not extend that. Until then it costs a descriptor and an
 * entry in a bounded table. When the table is full, the oldest entry of the address with
 * the most entries is closed, so strangers cannot keep agents out.
 */
#ifndef LAUNCHER_TRANSPORT_ACCEPT_H
#define LAUNCHER_TRANSPORT_ACCEPT_H

#include "common/strv.h"
#include "launcher/link/link.h"

#include <sys/socket.h>

struct acceptor;

/* A caller has proved the key of `node`; `here` is the local address it connected to.
 * Takes ownership of `fd` when it returns true. */
typedef bool (*accepted_fn)(unsigned node, int fd, const struct link_keys *keys,
                            const char *here, void *arg);

struct acceptor_options {
    size_t expected;  /* callers that may connect at the same time */
    int port;         /* 0: any free one */
    int64_t prove_ms; /* 0: 20 s */
    bool (*allowed)(const struct sockaddr *from, void *arg); /* NULL: any address */
};

/* Each node proves its own key, handshake_node_key() of `key`. */
struct acceptor *acceptor_create(struct loop *loop, const struct secret *key,
                                 const struct acceptor_options *options, accepted_fn fn,
                                 void *arg, struct ddp_err *err);
void acceptor_destroy(struct acceptor *a);

/* Authenticate the other end of `fd`, which is taken over, in the same way. */
void acceptor_add(struct acceptor *a, int fd);

/* "ADDRESS PORT", one per address of this machine that others may reach. */
void acceptor_addresses(const struct acceptor *a, struct strv *out);

#endif
