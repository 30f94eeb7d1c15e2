/* launcher/peer/join.h - a peer finds the head, joins, and runs as its node's agent */
#ifndef LAUNCHER_PEER_JOIN_H
#define LAUNCHER_PEER_JOIN_H

#include "launcher/peer/join_message.h"
#include "launcher/peer/key.h"

/* Runs until the job has ended; returns the job's exit code, as the head does. `head` is
 * its address, NULL: only the meeting file has it. `local_gone_fd`:
 * local_copies_gone_fd(). */
int join_run(const struct opts *opts, const struct ambient_job *o,
             const struct peer_key *k, const struct msg_join *own, const char *head,
             int local_gone_fd);

#endif
