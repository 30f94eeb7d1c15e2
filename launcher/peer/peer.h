/* launcher/peer/peer.h - the roles of several ddprun that form one job
 *
 * The first instance on a machine leads, the others wait for it (local_copies.h). Of the
 * leaders, the one of rank 0 is the head: it waits for all (gather.h) and runs the job;
 * its own agent runs the ranks of its node. The others join it as agents (join.h). Output
 * and input go through the head; the exit code is the same everywhere. User
 * documentation: doc/peers.md.
 */
#ifndef LAUNCHER_PEER_PEER_H
#define LAUNCHER_PEER_PEER_H

#include "launcher/job/peers.h"
#include "launcher/peer/ambient_job.h"

/* Runs this instance's role to its end, except the head's. Returns 1 for the head, with
 * `peers` filled; else 0, and the process exits with `*code`. The head calls peer_over()
 * when its job has ended. */
struct local_copies;
int peer_take_part(struct opts *opts, struct ambient_job *o, struct peers *peers,
                   struct local_copies **copies, int *code);
void peer_over(struct peers *peers, struct local_copies *copies, int code);

#endif
