/* launcher/agent/pmix_listener.h - libpmix listens on a socket that the agent has made
 *
 * Ranks are told of the port before there is a server behind it: the agent binds it, and
 * starts the server only when the first rank connects, so that a launch of anything else
 * than MPI costs one socket. libpmix however insists on a socket of its own. So this
 * program has its own bind() and accept(), which libpmix finds before the C library's:
 * its first internet socket becomes the agent's, and a connection that is not of the job
 * is closed before libpmix, which a silent client can block, sees it.
 *
 * A rank may be a script that runs one MPI program after the other. libpmix knows a rank
 * by its number alone, and takes the end of its first program, when that comes late, for
 * its end in what the others' second programs have begun together: their fence is then
 * over without it, and they look for files that it has removed. So nobody's second
 * program comes in before everybody's first has gone (launcher/agent/pmix_sessions.h).
 */
#ifndef LAUNCHER_AGENT_PMIX_LISTENER_H
#define LAUNCHER_AGENT_PMIX_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* To be called before libpmix is initialized. `fd` listens, `first` (-1: none) is a
 * connection that the agent has accepted; both are taken over. Only descendants of
 * `ancestor` pass. */
void pmix_listener_set(int fd, int first, pid_t ancestor);

/* libpmix knows the ranks now: they may come in. It would refuse one that it does not. */
void pmix_listener_open(void);

/* What was refused, to be logged and freed; NULL: nothing since the last call. */
char *pmix_listener_refused(void);

/* Wait until libpmix has hung up on everybody who has come in: when all ranks are gone it
 * does so by itself, and removes what they have left in /dev/shm. Returns whether it did
 * until `deadline_ms`. */
bool pmix_listener_empties(int64_t deadline_ms);

#endif
