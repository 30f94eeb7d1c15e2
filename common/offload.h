/* common/offload.h - a call that knows no deadline, in a thread of its own
 *
 * Some libraries wait for others inside of a call for as long as it takes, and cannot be
 * told to stop. Such a call is begun here and looked after from outside:
 *
 *     struct offload *a = offload_begin(meet, &what, sizeof what, err);
 *     while (!(done = offload_wait(a, 20)) && now_ms() < deadline)
 *         ... look whether the others are still there
 *     offload_end(a);
 *
 * A call that is given up goes on in its thread until it returns or the process ends; so
 * it works on a copy of what it was given, and on nothing else that may go away.
 */
#ifndef COMMON_OFFLOAD_H
#define COMMON_OFFLOAD_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

struct offload;

/* Runs call(copy) on a copy of `arg`, with signals blocked. NULL with `err`: no thread
 * could be had. Owner: the caller, until offload_end(). */
struct offload *offload_begin(void (*call)(void *copy), const void *arg, size_t bytes,
                              struct ddp_err *err);
/* Waits so long, or until the call has returned: then the copy, as the call left it,
 * which is there until offload_end(); else NULL. */
const void *offload_wait(struct offload *a, int64_t wait_ms);
/* The call may still be under way: then its copy goes when it returns. NULL is fine. */
void offload_end(struct offload *a);

#endif
