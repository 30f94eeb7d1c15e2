/* common/await.h - the end of a helper process, with a deadline
 *
 * For commands that are run for their answer (qsub, flux): one that has closed its output
 * and does not end must not keep us.
 */
#ifndef COMMON_AWAIT_H
#define COMMON_AWAIT_H

#include <stdint.h>
#include <sys/types.h>

/* Waits for our child `pid` until `deadline_ms` (now_ms() scale), then kills it. 0 with
 * its wait status; -1 when it had to be killed, or was waited for elsewhere. */
int await_end(pid_t pid, int64_t deadline_ms, int *status);

#endif
