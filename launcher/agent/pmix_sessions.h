/* launcher/agent/pmix_sessions.h - whose turn it is at the PMIx server
 *
 * A rank may be a script that runs one MPI program after the other, and libpmix knows a
 * rank by its number alone. The n-th programs of all ranks belong together; none of them
 * comes in while an earlier one of any rank is still inside, that is, until libpmix has
 * closed its connection, or is still to come in. Who has to wait is kept aside, and keeps
 * nobody else waiting: the others may be what the earlier one waits for. Who hangs up
 * while it is kept is forgotten, and its turn is that of the next who comes.
 *
 * A program that was started by one that is inside is no next one, as that one may wait
 * for it: it comes in at once. So does another connection of one that is inside.
 *
 * Calls may come from any thread.
 */
#ifndef LAUNCHER_AGENT_PMIX_SESSIONS_H
#define LAUNCHER_AGENT_PMIX_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The process `who` has come by the connection `fd`. Returns whether it may go in; else
 * `fd` is kept, until sessions_take() gives it back. */
bool sessions_arrive(int fd, pid_t who);

/* One that was kept, and may go in now: its connection, the caller's; -1: there is none.
 */
int sessions_take(void);

/* How many are kept; is there one for sessions_take()? */
size_t sessions_kept(void);
bool sessions_ready(void);

/* Has a program been kept for so long? Then whose it is, and for whose it waits: ranks.
 * Each is told of once. */
bool sessions_late(int64_t ms, unsigned *rank, unsigned *of);

/* Is anybody inside whose descriptor is `fd`? */
bool sessions_inside(int fd);

#endif
