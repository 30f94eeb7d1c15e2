/* launcher/control/client.h - connect to a running job of ours: --top, --report-on */
#ifndef LAUNCHER_CONTROL_CLIENT_H
#define LAUNCHER_CONTROL_CLIENT_H

#include "include/ddprun/err.h"

#include <jansson.h>
#include <stdint.h>

/* Connect to `job`: the pid of its launcher, or the beginning of its id; NULL: the only
 * job. Returns a blocking descriptor, or -1 with `err`, which lists the jobs if there are
 * several. Sockets of launchers that were killed are removed. */
int control_connect(const char *job, struct ddp_err *err);

/* Send a request and wait for one line. The answer is the caller's; NULL with `err`, also
 * for {"error": ...}. */
json_t *control_ask(int fd, const json_t *request, int64_t deadline_ms,
                    struct ddp_err *err);

#endif
