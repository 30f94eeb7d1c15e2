/* launcher/spawn/accept.h - the listener that agents and peers connect to
 *
 * A caller gets an offer and has PROVE_MS to prove its key (link/handshake.h), from the
 * moment it connects: no byte of its own gives it more. Until then it costs a descriptor
 * and an entry in a bounded table. When the table is full, the oldest entry of the
 * address that has most of them gives way: strangers do not keep agents out.
 */
#ifndef LAUNCHER_SPAWN_ACCEPT_H
#define LAUNCHER_SPAWN_ACCEPT_H

#include "common/strv.h"
#include "launcher/link/link.h"

#include <sys/socket.h>

struct acceptor;

/* A caller has proved the key of `node`; `here` is the address it called. Takes `fd` over
 * when it returns true. */
typedef bool (*accepted_fn)(unsigned node, int fd, const struct link_keys *keys,
                            const char *here, void *arg);

struct acceptor_options {
    size_t expected;                                       /* may come all at once */
    int port;                                              /* 0: any free one */
    int64_t prove_ms;                                      /* 0: 10 s */
    bool (*knows)(const struct sockaddr *from, void *arg); /* NULL: all are known */
};

/* Each node proves its own key, handshake_node_key() of `key`. */
struct acceptor *acceptor_create(struct loop *loop, const struct secret *key,
                                 const struct acceptor_options *options, accepted_fn fn,
                                 void *arg, struct ddp_err *err);
void acceptor_destroy(struct acceptor *a);

/* Whoever is at the other end of `fd`, taken over, is let in by the same proof. */
void acceptor_add(struct acceptor *a, int fd);

/* "ADDRESS PORT", one per address of this machine that others may reach. */
void acceptor_addresses(const struct acceptor *a, struct strv *out);

#endif
