/* launcher/peer/gather.h - the head waits until every peer has joined
 *
 * Runs before the job: its loop and listener are gone when gather_peers() returns, the
 * key and its meeting file are the caller's. The result is a list of connections, by
 * node.
 */
#ifndef LAUNCHER_PEER_GATHER_H
#define LAUNCHER_PEER_GATHER_H

#include "launcher/job/peers.h"
#include "launcher/peer/join_message.h"
#include "launcher/peer/key.h"

/* Wait for all of `o`; `own` describes the head itself. On success `peers` has all of
 * them, ordered by rank, and each has received its node number. Returns 0, or the exit
 * code of a failed start: with one line in `err`, or with empty text after a signal. */
int gather_peers(const struct opts *opts, const struct ambient_job *o,
                 const struct peer_key *k, const struct msg_join *own,
                 struct peers *peers, struct ddp_err *err);

#endif
