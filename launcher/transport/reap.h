/* launcher/transport/reap.h - the only place that waits for children
 *
 * SIGCHLD wakes the loop; all ended children are reaped in one pass and reported to the
 * watchers of their pids. Children without a watcher are descendants reparented to us as
 * their subreaper: reaped and ignored.
 */
#ifndef LAUNCHER_TRANSPORT_REAP_H
#define LAUNCHER_TRANSPORT_REAP_H

#include "common/loop.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

struct reap;

/* `at_ns` (monotonic): when its end was found; of several in one pass a later one ended
 * later. Before Linux 5.3 they have the same time: their order is unknown. */
typedef void (*reap_fn)(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                        void *arg);

/* One per process. Makes the process a subreaper. */
struct reap *reap_create(struct loop *loop, struct ddp_err *err);
void reap_destroy(struct reap *r);

/* Call `fn` once when `pid`, a child just started, has ended. */
void reap_watch(struct reap *r, pid_t pid, reap_fn fn, void *arg);
void reap_forget(struct reap *r, pid_t pid);

/* For children started in another thread. Between hold and release (they count) a child
 * without a watcher is not reaped. The thread passes its pidfd to reap_order(), with a
 * descriptor from reap_order_fd() that the caller closes; then the loop takes the pidfd
 * (-1: none) and watches it. */
void reap_hold(struct reap *r);
void reap_release(struct reap *r);
int reap_order_fd(const struct reap *r);
void reap_order(int order_fd, pid_t pid, int pidfd); /* in any thread */
void reap_watch_started(struct reap *r, pid_t pid, int pidfd, reap_fn fn, void *arg);

/* Call `fn` after each pass, when all watchers have been called: NULL for none. */
void reap_after(struct reap *r, void (*fn)(void *arg), void *arg);

/* Reap children that have already ended. Returns whether any child is left. */
bool reap_now(struct reap *r);

#endif
