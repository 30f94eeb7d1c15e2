/* launcher/peer/card.h - the card that the head leaves for its peers
 *
 * A file in a folder that all nodes share (default: ~/.ddprun, mode 0700), readable by
 * its owner alone: the summons of link/summons.h, with a fresh key and where to call. Its
 * name is a hash of what names this one start, so that starts do not meet each other's.
 * Who can read it is who may join; it is taken away when everybody has.
 */
#ifndef LAUNCHER_PEER_CARD_H
#define LAUNCHER_PEER_CARD_H

#include "launcher/link/summons.h"

struct card;

/* `folder` NULL: ~/.ddprun. It is made when it is not there, and refused when it is not
 * ours or others may write to it. */
struct card *card_create(const char *folder, const char *id, struct ddp_err *err);
void card_destroy(struct card *c); /* and take back what card_leave() left */
const char *card_path(const struct card *c);

int card_leave(struct card *c, const struct summons *s, struct ddp_err *err);

/* Returns 1 with the summons, 0 when there is no card (yet), -1 when there is one that
 * cannot be trusted or read. */
int card_read(const struct card *c, struct summons *s, struct ddp_err *err);

#endif
