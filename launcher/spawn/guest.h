/* launcher/spawn/guest.h - the listener that agents call, and who stands at the door
 *
 * A caller gets an offer and has a few seconds to prove the key (link/handshake.h). Until
 * then it costs one descriptor and a hundred bytes, and only so many are let wait.
 */
#ifndef LAUNCHER_SPAWN_GUEST_H
#define LAUNCHER_SPAWN_GUEST_H

#include "common/strv.h"
#include "launcher/link/link.h"

#include <sys/socket.h>

struct guests;

/* Has proved the key as `node`; `here` is the address it called. Takes `fd` over when it
 * returns true. */
typedef bool (*guest_fn)(unsigned node, int fd, const struct link_keys *keys,
                         const char *here, void *arg);

/* `expected` may all come at once. */
struct guests *guests_create(struct loop *loop, const struct secret *key, size_t expected,
                             guest_fn fn, void *arg, struct ddp_err *err);
/* The same at a port of one's own choice, and only for callers whose address is known. */
struct guests_where {
    size_t expected;
    int port;                                              /* 0: any free one */
    bool (*knows)(const struct sockaddr *from, void *arg); /* NULL: all are */
};
struct guests *guests_create_at(struct loop *loop, const struct secret *key,
                                const struct guests_where *where, guest_fn fn, void *arg,
                                struct ddp_err *err);
void guests_destroy(struct guests *g);

/* Whoever is at the other end of `fd`, taken over, is let in by the same proof. */
void guests_add(struct guests *g, int fd);

/* "ADDRESS PORT", one per address of this machine that others may reach. */
void guests_calls(const struct guests *g, struct strv *out);

#endif
