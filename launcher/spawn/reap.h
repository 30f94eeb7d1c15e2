/* launcher/spawn/reap.h - the only place that waits for children
 *
 * SIGCHLD wakes the loop; everything that has ended is reaped in one go and told to who
 * watches that pid. Children nobody watches are descendants that were handed to us as
 * their subreaper: reaped, counted, forgotten.
 */
#ifndef LAUNCHER_SPAWN_REAP_H
#define LAUNCHER_SPAWN_REAP_H

#include "common/loop.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

struct reap;

/* `at_ns` (monotonic): when it was found; of several that are found in one go a later one
 * ended later. Only before Linux 5.3 they have the same time: their order is not known. */
typedef void (*reap_fn)(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                        void *arg);

/* One per process. Makes the process a subreaper. */
struct reap *reap_create(struct loop *loop, struct ddp_err *err);
void reap_destroy(struct reap *r);

/* Call `fn` once when `pid`, a child of ours that has just been made, has ended. */
void reap_watch(struct reap *r, pid_t pid, reap_fn fn, void *arg);
void reap_forget(struct reap *r, pid_t pid);

/* Call `fn` after each go, when all that were found have been told: NULL for none. */
void reap_after(struct reap *r, void (*fn)(void *arg), void *arg);

/* Reap now what has ended already. Returns whether any child is left. */
bool reap_now(struct reap *r);

#endif
