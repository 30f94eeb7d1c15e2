/* launcher/agent/guard.h - two processes, each the other's guardian
 *
 * The child becomes the agent. The parent stays, does nothing, and is a subreaper: when
 * the agent is killed with -9, its ranks die with it by PR_SET_PDEATHSIG, and their stray
 * children are handed to the parent, which ends them. The other way round the agent sees
 * the parent's end of a pipe close, and ends everything itself.
 */
#ifndef LAUNCHER_AGENT_GUARD_H
#define LAUNCHER_AGENT_GUARD_H

/* Fork; `be_agent`, in a session of its own, gets the lifeline and returns the exit code
 * of the child. Returns in both processes, with the exit code of each. A signal that
 * means the end is passed on to the agent (ext_signals.h). `argv0` (may be NULL) is
 * written over, so that `pkill -9 -f` strikes one of the two only. */
int guard_part(int (*be_agent)(int lifeline, void *arg), void *arg, char *argv0);

#endif
