/* launcher/peer/peer.h - what a ddprun does that is one of several
 *
 * Of the copies on a machine the first leads and the others wait for it (local_copies.h).
 * Of those that lead, the one of rank 0 is the head: it waits for all (gather.h), runs
 * the job, and its own agent runs the ranks of its node. The others join it and are
 * agents (join.h). Output and input go through the head; the exit code is the same
 * everywhere. doc/peers.md has it for users.
 */
#ifndef LAUNCHER_PEER_PEER_H
#define LAUNCHER_PEER_PEER_H

#include "launcher/job/peers.h"
#include "launcher/peer/ambient_job.h"

/* To the end of this copy's part, unless it is the head. Returns 1 for the head, with
 * `peers` filled; else 0 and `*code` is what the process is to end with. For the head,
 * peer_over() follows when its job is over. */
struct local_copies;
int peer_take_part(struct opts *opts, struct ambient_job *o, struct peers *peers,
                   struct local_copies **mates, int *code);
void peer_over(struct peers *peers, struct local_copies *mates, int code);

#endif
