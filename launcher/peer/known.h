/* launcher/peer/known.h - the addresses of the job's hosts, where no secret is shared
 *
 * Names are looked up when a caller comes, and again after a moment while one is not
 * found: in a cloud a peer's name may exist a little later than the peer.
 */
#ifndef LAUNCHER_PEER_KNOWN_H
#define LAUNCHER_PEER_KNOWN_H

#include "launcher/peer/outer.h"

#include <sys/socket.h>

enum { PEER_PORT = 29400 }; /* where peers meet without a card; torchrun's c10d, too */

struct known;

/* The hosts that the start names, or those of -H; an error when neither does. */
struct known *known_create(const struct opts *opts, const struct outer *o,
                           struct ddp_err *err);
void known_destroy(struct known *k);

bool known_has(const struct known *k, const struct sockaddr *from);

#endif
