/* launcher/link/link.h - one connection between a launcher and an agent, or two agents
 *
 * Sends and receives frames over any connected stream socket. With keys
 * (link/handshake.h) the byte stream of frames is cut into sealed records, each with a
 * 4-byte length. Without keys (the socketpair of a local agent) frames are sent in plain.
 *
 * Frames sent during one loop iteration leave in one write at its end. Sending never
 * blocks and never fails: `closed` reports a broken link, once.
 *
 * Owner: the creator. link_close() may be called anywhere, also in the link's own
 * callbacks; the memory is freed at the end of the iteration.
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
    /* A complete frame; its body is valid only until this returns. */
    void (*frame)(struct link *l, const struct frame *f, void *arg);
    /* The peer has closed the link (`why` NULL) or it broke. No callback follows; the
     * owner still has to call link_close(). */
    void (*closed)(struct link *l, const char *why, void *arg);
};

/* Takes ownership of `fd`. `way` is the direction of received frames. `keys` is copied,
 * NULL for plain frames. */
struct link *link_create(struct loop *loop, int fd, enum frame_way way,
                         const struct link_keys *keys, const struct link_events *events,
                         void *arg);
/* Write to `out`, which is taken over, and use the original descriptor for reading only:
 * two pipes instead of a socket. Call before anything is sent. */
void link_write_to(struct link *l, int out);
void link_close(struct link *l); /* NULL is fine */
/* The same, immediately: when the loop no longer runs. */
void link_destroy(struct link *l);

/* The body is `head` and then `data`; both are copied. */
void link_send(struct link *l, enum msg_type type, unsigned node, const void *head,
               size_t nhead, const void *data, size_t ndata);
void link_send_pack(struct link *l, enum msg_type type, unsigned node,
                    const struct pack *k);

/* `m` is the struct of the type: link_send_msg(l, node, MSG(credit, n)). */
void link_send_msg(struct link *l, unsigned node, enum msg_type type, const void *m);

/* Write the queue, waiting until `deadline_ms` if necessary: before an exit. */
void link_flush(struct link *l, int64_t deadline_ms);

/* Receive now what has arrived: its sender has ended. */
void link_receive(struct link *l);

/* When the last byte was received, in monotonic ms. */
int64_t link_heard_ms(const struct link *l);

/* By TCP keepalive the link breaks within `timeout_ms` after the other host failed. */
void link_keepalive(struct link *l, int64_t timeout_ms);
/* Has the remote kernel acknowledged everything? Then a silent process there is stopped
 * or stuck, but its host is up. False if unknown (pipes). */
bool link_host_answers(const struct link *l);

#endif
