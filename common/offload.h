/* common/offload.h - run a blocking call in a thread, with a deadline
 *
 * For library calls that block without a time limit and cannot be cancelled:
 *
 *     struct offload *a = offload_begin(call, &what, sizeof what, err);
 *     while (!(done = offload_wait(a, 20)) && now_ms() < deadline)
 *         ... check for failed peers
 *     offload_end(a);
 *
 * An abandoned call continues in its thread until it returns or the process ends; so it
 * works on a copy of its argument, and must not use anything else that may be freed.
 */
#ifndef COMMON_OFFLOAD_H
#define COMMON_OFFLOAD_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

struct offload;

/* Run call(copy) on a copy of `arg` with signals blocked. NULL with `err`: no thread
 * could be created. Owner: the caller, until offload_end(). */
struct offload *offload_begin(void (*call)(void *copy), const void *arg, size_t bytes,
                              struct ddp_err *err);
/* Wait up to `wait_ms` (0 or less: not at all) for the call to return: the copy as the
 * call left it, valid until offload_end(); else NULL. */
const void *offload_wait(struct offload *a, int64_t wait_ms);
/* A call still running frees its copy when it returns; of one that has returned no thread
 * is left. NULL is fine. */
void offload_end(struct offload *a);
/* The same; before the copy is freed undo(copy) is called, perhaps in the thread: what
 * the call has made is not wanted any more. */
void offload_abandon(struct offload *a, void (*undo)(void *copy));

#endif
