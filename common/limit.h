/* common/limit.h - time limits that count only time in which this process ran
 *
 * A process may be stopped (SIGSTOP), its machine suspended, or a call blocked. What it
 * waits for has then not had that time, or has come and was not read yet. So a limit is a
 * sum of short waits: one that took much longer than it was to take counts as it was to.
 */
#ifndef COMMON_LIMIT_H
#define COMMON_LIMIT_H

#include "common/duration.h"
#include "common/loop.h"

struct limit;

/* Calls `fn` once after each limit_arm(), in the loop. Owner: the caller. */
struct limit *limit_create(struct loop *loop, void (*fn)(void *arg), void *arg);
void limit_destroy(struct limit *l);         /* may be NULL */
void limit_arm(struct limit *l, int64_t ms); /* from now on, also if it is armed */
void limit_stop(struct limit *l);

#endif
