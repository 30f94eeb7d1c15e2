/* launcher/policy/grace.h - escalating shutdown: SIGINT, SIGTERM, SIGKILL
 *
 * The steps are a table: after an INT (the user's Ctrl-C) the ranks have the grace time
 * to write a checkpoint, then they get TERM and a short while, then KILL. After a TERM
 * the grace time comes next, then KILL. With no grace at all KILL comes at once. KILL is
 * repeated until the owner says that nothing is left, for UNKILLABLE_MS at most: what is
 * left then hangs in the kernel, or belongs to another user.
 */
#ifndef LAUNCHER_POLICY_GRACE_H
#define LAUNCHER_POLICY_GRACE_H

#include "common/loop.h"

#include <stdbool.h>
#include <stdint.h>

struct grace;

/* ms: TERM to KILL after an INT (or the grace time, when that is shorter); and from the
 * first KILL until what is left is given up */
enum { TERM_AFTER_INT_MS = 2000, UNKILLABLE_MS = 5000 };

/* `act` is to send a signal to everything; `unkillable` is called once when that has not
 * helped: the last step. */
struct grace *grace_create(struct loop *loop, void (*act)(int sig, void *arg),
                           void (*unkillable)(void *arg), void *arg);
/* All steps together, from the first signal on, in ms. */
int64_t grace_longest_ms(int sig, int64_t grace_ms);
void grace_destroy(struct grace *g);

/* Begin with `sig`. Again with another: goes on to the later of the two steps, never
 * back; a grace of 0 goes straight to KILL. */
void grace_begin(struct grace *g, int sig, int64_t grace_ms);

/* Nothing is left: no more steps. */
void grace_done(struct grace *g);
void grace_renew(struct grace *g); /* as if it had never begun */

#endif
