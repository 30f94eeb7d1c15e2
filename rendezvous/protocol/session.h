/* rendezvous/protocol/session.h - one client's protocol state: bytes in, bytes out
 *
 * The owner feeds a session the bytes of its client; the session appends replies to an
 * output. It opens no socket and reads no clock. Requests are answered strictly in order:
 * a WAIT (or BARRIER) that is not complete holds back the requests after it, so that
 * "wait for these keys, then get them" is one round trip. CANCEL_WAIT is the exception:
 * the session searches the held requests for it. It ends the wait with a 1, which is also
 * its own reply. When a wait completes, the session calls host->news() and its owner
 * feeds it again.
 */
#ifndef RENDEZVOUS_PROTOCOL_SESSION_H
#define RENDEZVOUS_PROTOCOL_SESSION_H

#include "rendezvous/protocol/frame.h"
#include "rendezvous/protocol/out.h"
#include "rendezvous/store/store.h"

#include <sys/types.h>

struct session;

/* What a session needs from its owner, shared by all sessions of a server. */
struct session_host {
    struct frame_limits limits;
    enum dialect_rule rule;
    size_t output_mark; /* with so many bytes unsent no further request is executed */
    uint64_t requests;  /* counted by the sessions */
    struct reply_cache *replies; /* session.c's; freed by session_host_finish() */
    /* A wait has ended or a watched key has changed: feed `s` again, also without new
     * input. Called from inside session_feed() of any session. */
    void (*news)(struct session *s);
    /* The output for unsolicited bytes (changes of watched keys). */
    struct out *(*out)(struct session *s);
    /* Horovod's elastic mode (http.h): a GET of a place in the next world, a rank's
     * progress in joining it (`value` NULL), or a PUT of an address. NULL: these are keys
     * as all others.
     */
    void (*asked)(struct session_host *h, struct bytes key, const struct bytes *value);
};

struct session {
    struct session_host *host;     /* borrowed */
    struct space *space;           /* borrowed: open as long as the session lives */
    const struct dialect *dialect; /* NULL: not known yet */
    struct watch_node *watches;    /* owned */
    struct waiter waiter;
    struct frame frame; /* parses the first incomplete request */
    struct frame look;  /* the same for the first one at or behind `ahead` */
    size_t ahead;       /* bytes of held requests that have been searched */
    size_t cancelled;   /* CANCEL_WAITs in them that have taken effect already */
    bool ended, dropped;
    bool http, expired; /* the first request is HTTP; ... a GET, held long enough */
    bool asked;         /* ... a GET that the host knows of (session_host.asked) */
    bool stalled;       /* stopped at the host's output_mark with input left */
};

void session_init(struct session *s, struct session_host *host, struct space *space);
void session_finish(struct session *s); /* cancels its wait and its watches */

/* Process `n` bytes. Returns how many were consumed; the caller passes the rest (an
 * incomplete request, or one that is held back) again, followed by newer bytes. Returns
 * -1 with the reason when the client must be closed; `out` then has the replies to
 * earlier requests. */
ssize_t session_feed(struct session *s, const uint8_t *in, size_t n, struct out *out,
                     struct ddp_err *err);
bool session_waits(const struct session *s);
/* Is its wait one that session_expire() should end after a while? */
bool session_holds(const struct session *s);
/* End such a wait; feed the session again. */
void session_expire(struct session *s);

void session_host_finish(struct session_host *h);

#endif
