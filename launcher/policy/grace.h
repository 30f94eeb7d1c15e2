/* launcher/policy/grace.h - how what runs is ended: asked first, then made
 *
 * The steps are a table: after an INT (the user's Ctrl-C) the ranks have the grace time
 * to write a checkpoint, then they get TERM and a short while, then KILL. After a TERM
 * the grace time comes next, then KILL. With no grace at all KILL comes at once. KILL is
 * repeated until the owner says that nothing is left.
 */
#ifndef LAUNCHER_POLICY_GRACE_H
#define LAUNCHER_POLICY_GRACE_H

#include "common/loop.h"

#include <stdbool.h>
#include <stdint.h>

struct grace;

/* `act` is to send a signal to everything. */
struct grace *grace_create(struct loop *loop, void (*act)(int sig, void *arg), void *arg);
void grace_destroy(struct grace *g);

/* Begin with `sig`. Again with another: goes on to the later of the two steps, never
 * back; a grace of 0 goes straight to KILL. */
void grace_begin(struct grace *g, int sig, int64_t grace_ms);

bool grace_began(const struct grace *g);

/* Nothing is left: no more steps. */
void grace_done(struct grace *g);
void grace_renew(struct grace *g); /* as if it had never begun */

#endif
