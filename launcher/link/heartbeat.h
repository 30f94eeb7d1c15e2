/* launcher/link/heartbeat.h - failure detection of the process at the other end of a link
 *
 * Slow is not dead. A peer is declared lost when its connection is closed or reset, or
 * when it has been silent for the node timeout while this process ran. Time in which this
 * process did not run (SIGSTOP, a blocked call, no CPU) does not count: the peer may have
 * sent data that was not read yet. Launcher and agents use the same interval and count.
 *
 * Owner: the creator; one per process. A struct silence belongs to its peer's struct.
 */
#ifndef LAUNCHER_LINK_HEARTBEAT_H
#define LAUNCHER_LINK_HEARTBEAT_H

#include "common/loop.h"

#include <stdint.h>

enum { BEAT_MS = 1000, NODE_TIMEOUT_MS = 60000 /* default of --node-timeout */ };

struct heartbeat;

/* Call `beat` every BEAT_MS. A late beat is logged at level info. */
struct heartbeat *heartbeat_create(struct loop *loop, void (*beat)(void *arg), void *arg,
                                   struct ddp_err *err);
void heartbeat_destroy(struct heartbeat *h);

/* One peer; zero-initialised. */
struct silence {
    int64_t heard_ms;  /* heard_ms at the last count */
    int64_t silent_ms; /* silence counted since then */
};

/* Call once per peer and beat: `heard_ms` is when the last byte from it was read
 * (monotonic). Returns how long it has been silent while this process ran, in ms. */
int64_t heartbeat_count(const struct heartbeat *h, struct silence *s, int64_t heard_ms);

#endif
