/* launcher/link/link.h - one connection between a launcher and an agent, or two agents
 *
 * Frames in, frames out, over any connected stream socket. With keys (link/handshake.h)
 * everything is sealed: on the wire then lie records, each a 4-byte length and so many
 * sealed bytes; the frames run through the records as through a pipe. Without keys (the
 * socketpair of a local agent) the frames lie bare.
 *
 * What is sent during one turn of the loop leaves in one write at its end. Sending never
 * blocks and never fails: a link that breaks says so through `closed`, once.
 *
 * Owner: whoever has created it. link_close() may be called anywhere, also in its own
 * callbacks; memory goes at the end of the turn.
 */
#ifndef LAUNCHER_LINK_LINK_H
#define LAUNCHER_LINK_LINK_H

#include "common/loop.h"
#include "common/secret.h"
#include "launcher/link/frame.h"

struct link;

struct link_keys {
    struct seal out, in;
};

struct link_events {
    /* A whole frame; its body is valid only until this returns. */
    void (*frame)(struct link *l, const struct frame *f, void *arg);
    /* The peer has closed (`why` NULL) or the link broke. Nothing comes after it; the
     * owner still has to call link_close(). */
    void (*closed)(struct link *l, const char *why, void *arg);
    /* What was queued has shrunk below LINK_LOW after having been above LINK_HIGH. */
    void (*room)(struct link *l, void *arg); /* may be NULL */
};

enum { LINK_HIGH = 1 << 20, LINK_LOW = 256 << 10 };

/* Takes `fd` over. `way` is the direction in which frames are received. `keys` is copied,
 * NULL for bare frames. */
struct link *link_create(struct loop *loop, int fd, enum frame_way way,
                         const struct link_keys *keys, const struct link_events *events,
                         void *arg);
/* Write to `out`, taken over, and only read from the descriptor it was created with: two
 * pipes instead of a socket. Before anything is sent. */
void link_write_to(struct link *l, int out);
void link_close(struct link *l); /* NULL is fine */
/* The same, at once: when the loop does not run any more. */
void link_destroy(struct link *l);

/* The body is `head` and then `data`; both are copied. */
void link_send(struct link *l, enum msg_type type, unsigned node, const void *head,
               size_t nhead, const void *data, size_t ndata);
void link_send_pack(struct link *l, enum msg_type type, unsigned node,
                    const struct pack *k);

size_t link_queued(const struct link *l); /* bytes that wait to be written */

/* Write what is queued, waiting until `deadline_ms` if it must be: before an exit. */
void link_flush(struct link *l, int64_t deadline_ms);

/* Is it the first time that `round`, counted by the caller from 1, comes to this link?
 * For who goes over all nodes, many of which may be behind one link. */
bool link_first(struct link *l, uint64_t round);

/* Monotonic ms of the last byte received. */
int64_t link_heard_ms(const struct link *l);

/* Let the kernel ask the one at the other end whether it is up, so that a silent
 * connection breaks within `timeout_ms` when it is not. */
void link_keepalive(struct link *l, int64_t timeout_ms);
/* Has that kernel acknowledged everything? Then a process that is silent there has been
 * stopped, or is stuck; the machine is up. False when nobody knows (pipes). */
bool link_host_answers(const struct link *l);

#endif
