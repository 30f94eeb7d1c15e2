/* launcher/preflight/bandwidth.h - the way to a neighbour, measured
 *
 * Each node listens, and measures the way to the next: first messages of 64 bytes there
 * and back, one at a time; then as many bytes as go in a third of a second. All nodes do
 * that at once, as in an all-reduce. Whoever calls shows 32 bytes that only the nodes of
 * this job have.
 */
#ifndef LAUNCHER_PREFLIGHT_BANDWIDTH_H
#define LAUNCHER_PREFLIGHT_BANDWIDTH_H

#include "common/secret.h"
#include "include/ddprun/err.h"

/* Listen; `*port` gets the port. */
int bandwidth_listen(int *port, struct ddp_err *err);

/* Serve whoever calls `fd` and shows `token`, one after the other, for ever: in a process
 * of its own. */
_Noreturn void bandwidth_serve(int fd, const struct secret *token);

#endif
