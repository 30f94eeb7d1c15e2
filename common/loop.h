/* common/loop.h - an event loop (libevent) with a queue of deferred calls
 *
 * No object is freed inside its own callback: what must happen after the current callback
 * is posted, and runs before the loop sleeps again. One thread only.
 */
#ifndef COMMON_LOOP_H
#define COMMON_LOOP_H

#include "include/ddprun/err.h"

#include <event2/event.h>
#include <stdint.h>

struct loop; /* one event_base and its queue; made in main(), passed as an argument */

struct loop *loop_create(struct ddp_err *err);
/* Frees the queue without running it, and the base. */
void loop_destroy(struct loop *l);

struct event_base *loop_base(struct loop *l); /* borrowed */

/* Run `fn(arg)` once at the end of this iteration. */
void loop_post(struct loop *l, void (*fn)(void *arg), void *arg);
/* The same, after all that is posted so, also meanwhile: what one of these sends goes
 * with what the others have sent. */
void loop_post_last(struct loop *l, void (*fn)(void *arg), void *arg);
/* Cancel the calls posted for `arg` that have not run yet. */
void loop_unpost(struct loop *l, const void *arg);

/* Events of the loop. None of these fails: they print why and abort when memory is gone,
 * as mem.h does, or the kernel watches too many descriptors (fs.epoll.max_user_watches).
 *
 * loop_event: as event_new(). loop_watch: the same, and active at once. loop_timer: runs
 * `fn` once after each loop_arm(). All are owned by the caller: event_del(), loop_free().
 */
struct event *loop_event(struct loop *l, int fd, short what, event_callback_fn fn,
                         void *arg);
struct event *loop_watch(struct loop *l, int fd, short what, event_callback_fn fn,
                         void *arg);
struct event *loop_timer(struct loop *l, event_callback_fn fn, void *arg);
void loop_arm(struct event *timer, int64_t ms); /* from now on, also if it is armed */
void loop_free(struct event *e);                /* may be NULL */

/* Free an event and close its descriptor; both are NULL and -1 afterwards, and may be
 * before. */
void loop_close_fd(struct event **e, int *fd);
/* The same, but the descriptor is closed some ms later, or by loop_destroy(), and within
 * a posted function the event is freed after all that is posted has run. While the
 * processes of a job end, closing hundreds of descriptors would take CPU time from them,
 * and delay the report of their exits. */
void loop_close_fd_later(struct loop *l, struct event **e, int *fd);
void loop_close_later(struct loop *l, int *fd); /* one without an event */

/* Run until loop_stop(). Returns the argument of the first loop_stop(). */
int loop_run(struct loop *l);
void loop_stop(struct loop *l, int code);

#endif
