/* launcher/mpi_calls/message_counts.h - messages that this rank has begun to send and
 * receive
 *
 * Two ranks that count alike tell a reader of both files which message has not been sent.
 */
#ifndef LAUNCHER_MPI_CALLS_MESSAGE_COUNTS_H
#define LAUNCHER_MPI_CALLS_MESSAGE_COUNTS_H

#include "common/mpi_calls.h"

#include <stdbool.h>

/* Another one, with a rank of the job in a communicator, by its id. */
struct mpi_message_record message_counts_add(struct mpi_calls_file *f, uint64_t comm,
                                             int peer, int tag, bool sends);
/* A communicator is freed. */
void message_counts_forget(struct mpi_calls_file *f, uint64_t comm);

#endif
