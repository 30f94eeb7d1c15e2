/* common/loop.h - what the programs add to libevent: one end-of-turn queue
 *
 * Nobody is freed inside his own callback: what must happen when the current callback
 * has returned is posted, and runs before the loop sleeps again. One thread only.
 */
#ifndef COMMON_LOOP_H
#define COMMON_LOOP_H

#include "include/ddprun/err.h"

#include <event2/event.h>

struct loop; /* one event_base and its queue; made in main(), passed as an argument */

struct loop *loop_create(struct ddp_err *err);
/* Frees the queue unrun; the base goes too. */
void loop_destroy(struct loop *l);

struct event_base *loop_base(struct loop *l); /* borrowed */

/* Run `fn(arg)` once at the end of this turn of the loop. */
void loop_post(struct loop *l, void (*fn)(void *arg), void *arg);
/* Forget what was posted for `arg` and has not run yet. */
void loop_unpost(struct loop *l, const void *arg);

/* Run until loop_stop(). Returns the argument of the first loop_stop(). */
int loop_run(struct loop *l);
void loop_stop(struct loop *l, int code);

#endif
