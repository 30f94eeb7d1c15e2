/* launcher/plugins/mpi/pmix_listener.h - make libpmix listen on the agent's socket
 *
 * The ranks' environment contains the port before the server exists: the agent binds it,
 * and starts the server only when the first rank connects, so a launch without MPI costs
 * one socket. libpmix, however, always opens its own socket. So this program defines
 * bind(), listen() and accept(), which libpmix resolves before the C library's: libpmix
 * accepts the connections of programs that may enter now (pmix_sessions.h), and one from
 * outside the job is closed before libpmix, which a silent client can block, sees it.
 *
 * Starting the server before the ranks would not replace this: libpmix (4.2, 5.0) has no
 * call that takes a connected socket, asks its host only after it has read from a client,
 * and reads in a blocking way; its "native" security on TCP believes any uid that a
 * client states. So only accept() can refuse a stranger before a byte is read. The server
 * would also have to run for every script, as the MPI that it may use is not known.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_LISTENER_H
#define LAUNCHER_PLUGINS_MPI_PMIX_LISTENER_H

#include "common/loop.h"

#include <stdbool.h>
#include <sys/types.h>

/* Call before libpmix is initialized. `fd` is the listening socket, `first` (-1: none) a
 * connection that the agent has accepted; takes ownership of both. Only descendants of
 * `ancestor` are admitted. -1: errno. */
int pmix_listener_set(int fd, int first, pid_t ancestor);

/* Admit connections from now on: libpmix, which rejects unknown ranks, knows them all. */
void pmix_listener_open(struct loop *loop);

/* Wait until libpmix has closed all connections: it does so when all ranks have exited,
 * and removes their files in /dev/shm. Returns whether that happened by `deadline_ms`. */
bool pmix_listener_empties(int64_t deadline_ms);

#endif
