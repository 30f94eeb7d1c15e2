/* launcher/agent/ext_signals.h - signals to an agent that do not come from the launcher
 *
 * A scheduler ends or warns a job by signalling every process of it on every node, the
 * ranks included. So the agent ignores warnings (USR1, USR2, ...) and reports termination
 * signals to the launcher, which ends the job as if it had received them itself.
 */
#ifndef LAUNCHER_AGENT_EXT_SIGNALS_H
#define LAUNCHER_AGENT_EXT_SIGNALS_H

#include "common/loop.h"

#include <signal.h>

struct ext_signals;

/* Termination signals: TERM, INT and HUP. */
void ext_signals_ends(sigset_t *set);

/* Ignore warnings, and block termination signals until ext_signals_create(). */
void ext_signals_hold(void);

/* `on_end` is called for each TERM, INT and HUP, but not for HUP if that is ignored. */
struct ext_signals *ext_signals_create(struct loop *loop,
                                       void (*on_end)(int sig, void *arg), void *arg);
void ext_signals_destroy(struct ext_signals *o);

#endif
