/* launcher/plugins/preflight/bandwidth.h - measure latency and bandwidth to the next node
 *
 * Each node listens, and measures the connection to the next: first the round-trip time
 * of 64-byte messages, one at a time; then as many bytes as go through in STREAM_MS. All
 * nodes measure at once, as in a ring all-reduce. The connecting node authenticates with
 * the job's token, 32 bytes.
 */
#ifndef LAUNCHER_PLUGINS_PREFLIGHT_BANDWIDTH_H
#define LAUNCHER_PLUGINS_PREFLIGHT_BANDWIDTH_H

#include "common/secret.h"
#include "include/ddprun/err.h"

/* Listen; `*port` gets the port. */
int bandwidth_listen(int *port, struct ddp_err *err);

/* Serve connections to `fd` that send `token`, one after the other, for ever; the caller
 * is a process that does nothing else. */
_Noreturn void bandwidth_serve(int fd, const struct secret *token);

#endif
