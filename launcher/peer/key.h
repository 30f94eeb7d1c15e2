/* launcher/peer/key.h - how the copies of one start know each other
 *
 * In order: --peer-key; DDPRUN_KEY; what the starter itself has given to its ranks alone;
 * and else a card in the home folder. With a secret there is no card: all make the same
 * key from it and the name of the start. --peer-key none makes it from the name alone,
 * which is no secret: then the head lets in only who comes from one of the job's hosts,
 * and says so. doc/peers.md argues the choice.
 */
#ifndef LAUNCHER_PEER_KEY_H
#define LAUNCHER_PEER_KEY_H

#include "common/secret.h"
#include "launcher/peer/ambient_job.h"
#include "launcher/peer/meeting_file.h"

struct peer_key {
    struct meeting_file *card; /* owned; NULL: they know the key, and where the head is */
    struct secret key;         /* the head's fresh one for its card, or the common one */
    bool open;                 /* the key is no secret */
};

/* `addressed`: where the head is can be told without a card. */
int peer_key_find(const struct opts *opts, const struct ambient_job *o, bool addressed,
                  struct peer_key *k, struct ddp_err *err);
void peer_key_finish(struct peer_key *k);

#endif
