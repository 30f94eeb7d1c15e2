/* launcher/peer/join.h - a peer: finds the head, joins it, and is the agent of its node
 */
#ifndef LAUNCHER_PEER_JOIN_H
#define LAUNCHER_PEER_JOIN_H

#include "launcher/peer/join_message.h"
#include "launcher/peer/key.h"

/* Until the job is over; returns its exit code, the same as the head's. `head` is where
 * it is when there is no card; NULL: the card tells. `mate_gone`: as in struct peers. */
int join_run(const struct opts *opts, const struct ambient_job *o,
             const struct peer_key *k, const struct join_request *own, const char *head,
             int mate_gone);

#endif
