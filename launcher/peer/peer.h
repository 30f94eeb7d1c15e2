/* launcher/peer/peer.h - what a ddprun does that is one of several
 *
 * Of the copies on a machine the first leads and the others wait for it (mates.h). Of
 * those that lead, the one of rank 0 is the head: it waits for all (assembly.h), runs the
 * job, and its own agent runs the ranks of its node. The others join it and are agents
 * (member.h). Output and input go through the head; the exit code is the same everywhere.
 * doc/peers.md has it for users.
 */
#ifndef LAUNCHER_PEER_PEER_H
#define LAUNCHER_PEER_PEER_H

#include "launcher/peer/outer.h"
#include "launcher/peers.h"

/* To the end of this copy's part, unless it is the head. Returns 1 for the head, with
 * `peers` filled; else 0 and `*code` is what the process is to end with. For the head,
 * peer_over() follows when its job is over. */
struct mates;
int peer_take_part(struct opts *opts, struct outer *o, struct peers *peers,
                   struct mates **mates, int *code);
void peer_over(struct peers *peers, struct mates *mates, int code);

#endif
