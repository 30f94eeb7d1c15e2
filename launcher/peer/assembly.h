/* launcher/peer/assembly.h - the head waits until every peer has come
 *
 * Over before the job begins: its loop, its listener and its card are gone when
 * assembly_gather() returns. What remains is a list of connections, by node.
 */
#ifndef LAUNCHER_PEER_ASSEMBLY_H
#define LAUNCHER_PEER_ASSEMBLY_H

#include "launcher/peer/key.h"
#include "launcher/peer/note.h"
#include "launcher/peers.h"

/* Wait for all of `o`; the head itself is described by `own`. On success `peers` has
 * them all, ordered by rank, and each has been told its number. Returns 0, or the exit
 * code of a start that failed: with one line in `err`, or none (text "") when a signal
 * has ended it. */
int assembly_gather(const struct opts *opts, const struct outer *o, struct peer_key *k,
                    const struct note_here *own, struct peers *peers,
                    struct ddp_err *err);

#endif
