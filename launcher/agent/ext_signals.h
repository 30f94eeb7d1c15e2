/* launcher/agent/ext_signals.h - signals that an agent gets from others than the launcher
 *
 * A scheduler ends or warns a job by a signal to every process of it on every node: its
 * ranks have had it already when the agent gets it. Warnings (USR1, USR2, ...) are
 * therefore nobody's business here; what means the end is told to the launcher, which
 * ends the job as if it had been told itself.
 */
#ifndef LAUNCHER_AGENT_EXT_SIGNALS_H
#define LAUNCHER_AGENT_EXT_SIGNALS_H

#include "common/loop.h"

struct ext_signals;

/* From now on no warning ends this process, and who tells it to end is heard once
 * ext_signals_create() is there to listen. */
void ext_signals_hold(void);

/* `told` hears of TERM, INT, HUP and QUIT, each time. */
struct ext_signals *ext_signals_create(struct loop *loop,
                                       void (*told)(int sig, void *arg), void *arg,
                                       struct ddp_err *err);
void ext_signals_destroy(struct ext_signals *o);

#endif
