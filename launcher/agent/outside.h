/* launcher/agent/outside.h - signals that an agent gets from others than the launcher
 *
 * A scheduler ends or warns a job by a signal to every process of it on every node: its
 * ranks have had it already when the agent gets it. Warnings (USR1, USR2, ...) are
 * therefore nobody's business here; what means the end is told to the launcher, which
 * ends the job as if it had been told itself.
 */
#ifndef LAUNCHER_AGENT_OUTSIDE_H
#define LAUNCHER_AGENT_OUTSIDE_H

#include "common/loop.h"

struct outside;

/* From now on no warning ends this process, and who tells it to end is heard once
 * outside_create() is there to listen. */
void outside_deafen(void);

/* `told` hears of TERM, INT, HUP and QUIT, each time. */
struct outside *outside_create(struct loop *loop, void (*told)(int sig, void *arg),
                               void *arg, struct ddp_err *err);
void outside_destroy(struct outside *o);

#endif
