/* launcher/policy/grace.h - escalating shutdown: SIGINT, SIGTERM, SIGKILL
 *
 * After INT (the user's Ctrl-C) the ranks have the grace time to write a checkpoint, then
 * TERM_AFTER_INT_MS after TERM, then they get KILL. After TERM they have the grace time,
 * then KILL, which grace_before_kill() may delay. A grace time of 0 means KILL at once.
 * KILL is repeated until grace_stop(), for at most UNKILLABLE_MS: processes that survive
 * hang in the kernel, or belong to another user.
 */
#ifndef LAUNCHER_POLICY_GRACE_H
#define LAUNCHER_POLICY_GRACE_H

#include "common/loop.h"

#include <stdbool.h>
#include <stdint.h>

struct grace;

/* ms: from TERM to KILL after INT (or the grace time if shorter); the longest delay of
 * KILL; from the first KILL until the remaining processes are given up */
enum { TERM_AFTER_INT_MS = 2000, BEFORE_KILL_MS = 2500, UNKILLABLE_MS = 5000 };

/* `act` sends a signal to all processes; `unkillable` is called once, when UNKILLABLE_MS
 * have passed. */
struct grace *grace_create(struct loop *loop, void (*act)(int sig, void *arg),
                           void (*unkillable)(void *arg), void *arg);
/* ms of all steps together, starting with `sig`. */
int64_t grace_longest_ms(int sig, int64_t grace_ms);
void grace_destroy(struct grace *g);
/* Call `delays` once per attempt when KILL is due after another step: true delays it by
 * BEFORE_KILL_MS, or until grace_begin() with a grace time of 0. */
void grace_before_kill(struct grace *g, bool (*delays)(void *arg));

/* Begin with `sig`. A second call may only advance to a later step; a grace time of 0
 * goes straight to KILL. */
void grace_begin(struct grace *g, int sig, int64_t grace_ms);

/* All processes have exited, or are given up. The next attempt may begin. */
void grace_stop(struct grace *g);

#endif
