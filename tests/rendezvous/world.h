/* tests/rendezvous/world.h - clients and a store without sockets
 *
 * Up to WORLD_PEERS sessions in one store; bytes go in by world_send() and pile up on the
 * way out until world_take(). What a session has not used up is kept and given again, as
 * the server does.
 */
#ifndef TESTS_RENDEZVOUS_WORLD_H
#define TESTS_RENDEZVOUS_WORLD_H

#include "rendezvous/protocol/session.h"

enum { WORLD_PEERS = 10 };

struct peer {
    struct session session;
    struct space *space;
    struct out out;
    uint8_t *held;
    size_t nheld;
    bool open, closed; /* closed: by the store, for the reason in `why` */
    struct ddp_err why;
};

struct world {
    struct session_host host; /* first */
    struct store *store;
    struct peer peers[WORLD_PEERS];
    uint32_t news; /* bit per peer */
    /* around each session_feed(); NULL: none. For a test that takes memory away. */
    void (*feeding)(bool begins);
};

/* `rule` and limits as ddpstored's, unless the test changes w->host afterwards. */
void world_init(struct world *w, enum dialect_rule rule);
void world_finish(struct world *w);

void world_open(struct world *w, int who, unsigned scope);
void world_close(struct world *w, int who); /* the client leaves */
/* Opens it when it is not open. */
void world_send(struct world *w, int who, const void *bytes, size_t n);
/* Moves up to `n` bytes of output; returns how many there were. What was held up by the
 * host's output_mark goes on. */
size_t world_take(struct world *w, int who, void *bytes, size_t n);
size_t world_pending(const struct world *w, int who);
/* Scope dropped: notify the waiters. */
void world_drop(struct world *w, unsigned scope);

#endif
