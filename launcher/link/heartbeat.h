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

#include <stdbool.h>
#include <stdint.h>

enum { NODE_TIMEOUT_MS = 60000 /* default of --node-timeout */ };

struct heartbeat;

/* Call `beat` every second, and at least ten times in timeout_ms, which is
 * thus exceeded by a tenth at most. A late beat is logged at level info. */
struct heartbeat *heartbeat_create(struct loop *loop, int64_t timeout_ms,
                                   void (*beat)(void *arg), void *arg);
void heartbeat_destroy(struct heartbeat *h);
void heartbeat_set_timeout(struct heartbeat *h, int64_t timeout_ms);
/* How long this process did not run, in ms, for reports: the sum of all beats that were
 * late by more than half a second, also of one that is due now. */
int64_t heartbeat_late_ms(const struct heartbeat *h);

/* One peer; zero-initialised. */
struct silence {
    int64_t heard_ms;     /* heard_ms at the last count */
    int64_t silent_ms;    /* silence counted since then */
    int64_t heard_for_ms; /* counted of the beats in which something was heard */
};

/* Call once per peer and beat, after the ping of this beat: `heard_ms` is when the last
 * byte from it was read (monotonic). True: it has not answered for timeout_ms, counted
 * from the first ping without an answer, while this process ran. */
bool heartbeat_silent(const struct heartbeat *h, struct silence *s, int64_t heard_ms);

#endif
