/* launcher/peer/late.h - other ddprun join a job that runs (--nnodes MIN:MAX)
 *
 * The head's listener, again, in the loop of the job; it keeps the key, and with it the
 * meeting file.
 */
#ifndef LAUNCHER_PEER_LATE_H
#define LAUNCHER_PEER_LATE_H

#include "launcher/job/peers.h"
#include "launcher/peer/ambient_job.h"
#include "launcher/peer/key.h"

/* Takes over what `k` has; `opts` and `o` are borrowed. To be freed by its close(). */
struct late_peers *late_peers_create(const struct opts *opts, const struct ambient_job *o,
                                     struct peer_key *k);

#endif
