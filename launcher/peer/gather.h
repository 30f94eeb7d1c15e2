/* launcher/peer/gather.h - the head waits until every peer has come
 *
 * Over before the job begins: its loop, its listener and its card are gone when
 * gather_peers() returns. What remains is a list of connections, by node.
 */
#ifndef LAUNCHER_PEER_GATHER_H
#define LAUNCHER_PEER_GATHER_H

#include "launcher/job/peers.h"
#include "launcher/peer/join_message.h"
#include "launcher/peer/key.h"

/* Wait for all of `o`; the head itself is described by `own`. On success `peers` has
 * them all, ordered by rank, and each has been told its number. Returns 0, or the exit
 * code of a start that failed: with one line in `err`, or none (text "") when a signal
 * has ended it. */
int gather_peers(const struct opts *opts, const struct ambient_job *o, struct peer_key *k,
                 const struct join_request *own, struct peers *peers,
                 struct ddp_err *err);

#endif
