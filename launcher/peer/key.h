/* launcher/peer/key.h - the key by which instances of one start authenticate each other
 *
 * In order: --peer-key; DDPRUN_KEY; a secret that the outer launcher gives to its ranks
 * only; else a meeting file in the home directory. With a secret there is no meeting
 * file: every instance derives the same key from the secret and the id of the start.
 * --peer-key none derives it from the id alone, which is public: then the head accepts
 * only connections from the job's hosts, and warns. doc/peers.md gives the reasons.
 */
#ifndef LAUNCHER_PEER_KEY_H
#define LAUNCHER_PEER_KEY_H

#include "common/secret.h"
#include "launcher/peer/ambient_job.h"
#include "launcher/peer/meeting_file.h"

struct peer_key {
    struct meeting_file *meeting_file; /* owned; NULL: key and address are known */
    struct secret key; /* random, for the head's meeting file, or the derived one */
    bool open;         /* the key is public */
};

/* `addressed`: the head's address is known without a meeting file. */
int peer_key_find(const struct opts *opts, const struct ambient_job *o, bool addressed,
                  struct peer_key *k, struct ddp_err *err);
void peer_key_finish(struct peer_key *k);

#endif
