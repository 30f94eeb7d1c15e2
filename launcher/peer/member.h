/* launcher/peer/member.h - a peer: finds the head, joins it, and is the agent of its node
 */
#ifndef LAUNCHER_PEER_MEMBER_H
#define LAUNCHER_PEER_MEMBER_H

#include "launcher/peer/key.h"
#include "launcher/peer/note.h"

/* Until the job is over; returns its exit code, the same as the head's. `head` is where
 * it is when there is no card; NULL: the card tells. `mate_gone`: as in struct peers. */
int member_run(const struct opts *opts, const struct outer *o, const struct peer_key *k,
               const struct note_here *own, const char *head, int mate_gone);

#endif
