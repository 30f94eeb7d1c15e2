/* launcher/link/heartbeat.h - is the process at the other end of a link alive?
 *
 * Slow is not dead. A peer is dead when its connection is closed or reset, or when it has
 * been silent for the node timeout while this process ran. Time in which this process did
 * not run itself (SIGSTOP, a blocked call, no CPU) is not counted: the peer may have sent,
 * and nobody has read it. Launcher and agents use the same beat and the same count.
 *
 * Owner: the creator; one per process. A struct silence belongs to its peer's struct.
 */
#ifndef LAUNCHER_LINK_HEARTBEAT_H
#define LAUNCHER_LINK_HEARTBEAT_H

#include "common/loop.h"

#include <stdint.h>

enum { BEAT_MS = 1000, NODE_TIMEOUT_MS = 60000 /* --node-timeout, by default */ };

struct heartbeat;

/* Call `beat` every BEAT_MS. A beat that is late is logged at level info: this loop stood
 * still. */
struct heartbeat *heartbeat_create(struct loop *loop, void (*beat)(void *arg), void *arg,
                                   struct ddp_err *err);
void heartbeat_destroy(struct heartbeat *h);

/* One peer; zeroed when it has just been heard. */
struct silence {
    int64_t heard_ms;  /* as it was at the last count */
    int64_t silent_ms; /* counted since then */
};

/* Once per peer and beat: `heard_ms` is when the last byte from it was read (monotonic).
 * Returns for how long it has been silent while this process ran, in ms. */
int64_t heartbeat_count(const struct heartbeat *h, struct silence *s, int64_t heard_ms);

#endif
