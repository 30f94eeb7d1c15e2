/* launcher/plugins/mpi/pmix_sessions.h - order in which MPI programs may enter the PMIx
 * server
 *
 * A rank may be a script that runs several MPI programs in turn, and libpmix identifies a
 * client by its rank only. If a rank's first program disconnects late, libpmix treats
 * that as the rank's exit from a fence of the other ranks' second programs: the fence
 * completes without it, and files that the others need are removed.
 *
 * So the n-th programs of all ranks form session n. A program is admitted only when no
 * program of an earlier session is active (libpmix has closed its connection) or queued.
 * Otherwise its connection is queued, which delays no other: programs of the earlier
 * session may need them. A queued program that disconnects is forgotten, and the rank's
 * next connection takes its session number.
 *
 * A program started by an active one joins that one's session and is admitted at once, as
 * its parent may wait for it. So is another connection of an active program.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_SESSIONS_H
#define LAUNCHER_PLUGINS_MPI_PMIX_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The process `who` has connected by `fd`. Returns whether it is admitted; if not, `fd`
 * is queued until sessions_take() returns it. */
bool sessions_admit(int fd, pid_t who);

/* Dequeue a connection that may enter now; the caller owns it. -1: none. */
int sessions_take(void);

size_t sessions_queued(void); /* the number of queued connections */

/* Whether a program has been queued for `ms`: its rank, and the rank it waits for.
 * Returns each program once. */
bool sessions_late(int64_t ms, unsigned *rank, unsigned *of);

/* Whether `fd` is the connection of an active program. */
bool sessions_active(int fd);

#endif
