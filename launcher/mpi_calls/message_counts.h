/* launcher/mpi_calls/message_counts.h - messages that this rank has begun to send and
 * receive
 *
 * Two ranks that count alike tell a reader of both files which message has not been sent.
 */
#ifndef LAUNCHER_MPI_CALLS_MESSAGE_COUNTS_H
#define LAUNCHER_MPI_CALLS_MESSAGE_COUNTS_H

#include "common/mpi_calls.h"

/* `m` is another one: numbers it. */
void message_counts_add(struct mpi_calls_file *f, struct mpi_message_record *m);
/* A communicator is freed. */
void message_counts_forget(struct mpi_calls_file *f, uint64_t comm);

#endif
