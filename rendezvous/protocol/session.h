/* rendezvous/protocol/session.h - one client's conversation, as bytes in and bytes out
 *
 * A session is fed what its client sent and appends replies to an output; it opens no
 * socket and knows no clock. Requests are answered strictly in order. A WAIT (or BARRIER)
 * that must wait holds what is sent behind it, so that "wait for these, then give me
 * these" is one round trip; CANCEL_WAIT is the exception, it is looked for among what is
 * held. It ends the wait with a 1, which is also its own answer. When a wait has ended on
 * its own the host is told and feeds the session again.
 */
#ifndef RENDEZVOUS_PROTOCOL_SESSION_H
#define RENDEZVOUS_PROTOCOL_SESSION_H

#include "rendezvous/protocol/frame.h"
#include "rendezvous/protocol/out.h"
#include "rendezvous/store/store.h"

#include <sys/types.h>

struct session;

/* What sessions need of whoever owns them. */
struct session_host {
    struct frame_limits limits;
    enum dialect_rule rule;
    size_t output_mark; /* no request is begun while so many bytes wait to be sent */
    uint64_t requests;  /* counted by the sessions */
    struct memo *memo;  /* session.c's: the last large MULTI_GET; session_host_finish() */
    /* There is news (a wait has ended, a watched key has changed): feed me again, also
     * without new input. Called from inside session_feed() of any session. */
    void (*news)(struct session *s);
    /* Where bytes go that the client has not asked for. */
    struct out *(*out)(struct session *s);
};

struct session {
    struct session_host *host;     /* borrowed */
    struct space *space;           /* borrowed: open as long as the session lives */
    const struct dialect *dialect; /* NULL: not known yet */
    struct watch_node *watches;    /* owned */
    struct waiter waiter;
    struct frame frame; /* walks through the first request that is not whole */
    struct frame look;  /* the same for the first one at or behind `ahead` */
    size_t ahead;       /* so far the held requests have been searched */
    size_t cancelled;   /* CANCEL_WAITs among those that have done their work already */
    bool ended, dropped;
    bool stalled; /* stopped at the host's output_mark with input left */
};

void session_init(struct session *s, struct session_host *host, struct space *space);
void session_finish(struct session *s); /* no longer waits or watches */

/* Work through `n` bytes. Returns how many were used up; the rest (half a request, or one
 * that must wait) is given again, in front of what has come by then. Returns -1 with the
 * reason when the client is to be closed; replies to what came before are in `out`. */
ssize_t session_feed(struct session *s, const uint8_t *in, size_t n, struct out *out,
                     struct ddp_err *err);
bool session_waits(const struct session *s);

void session_host_finish(struct session_host *h);

#endif
