/* launcher/agent/guard.h - a supervisor process for the agent
 *
 * The child becomes the agent. The parent is the guard, a subreaper. If the agent is
 * killed with SIGKILL, its ranks die by PR_SET_PDEATHSIG, and their remaining children
 * are reparented to the guard, which kills them. If the guard is killed, the agent sees
 * its end of a pipe close, and shuts down. If the link to the launcher is closed, but the
 * agent stays, as it is stopped or hangs in the kernel, the guard kills the ranks.
 */
#ifndef LAUNCHER_AGENT_GUARD_H
#define LAUNCHER_AGENT_GUARD_H

/* Fork. The child runs `be_agent` in a session of its own, with the lifeline (the pipe's
 * read end), and takes its return value as exit code. Returns in both processes, with the
 * exit code of each. The guard forwards termination signals to the agent (ext_signals.h).
 * `argv0` (may be NULL) is overwritten: `pkill -9 -f` shall match only one of them. */
int guard_part(int (*be_agent)(int lifeline, void *arg), void *arg, char *argv0);

/* In the agent: the connection that is its link. Without a guard it does nothing. */
void guard_watch(int fd);

#endif
