/* launcher/link/handshake.h - both ends of a new connection prove that they know the key
 *
 * Challenge and response with the key of the caller's node, which never travels. Pure:
 * bytes in, bytes out; who reads and writes them is accept.c on the listening side and
 * call.c on the other. Each side sends a fresh public key (X25519), which is the
 * challenge too; the keys of the link, one per direction, come from what they agree on
 * and from the node's key. Who records a link and learns the node's key later cannot read
 * it.
 *
 *     listener -> caller   offer    "DDPRUN" version(2) public(32)
 *     caller -> listener   answer   "DDPRUN" version(2) node(2) public(32) proof(32)
 *     listener -> caller   proof    proof(32)
 */
#ifndef LAUNCHER_LINK_HANDSHAKE_H
#define LAUNCHER_LINK_HANDSHAKE_H

#include "launcher/link/link.h"

enum { HANDSHAKE_OFFER = 40, HANDSHAKE_ANSWER = 74, HANDSHAKE_PROOF = SECRET_SIZE };

struct handshake {
    struct secret key; /* of the node; at the listener of the job, until the answer */
    struct exchange own;
    unsigned char theirs[SECRET_SIZE]; /* their public key */
};

/* The key of one node. Of those of the other nodes and of the job's it tells nothing. */
void handshake_node_key(const struct secret *job, unsigned node, struct secret *key);

/* The listening side, which knows the job's key: the offer; then the answer's check,
 * which gives the proof to send back, who calls, and the keys of the link. */
void handshake_offer(struct handshake *h, const struct secret *job,
                     unsigned char offer[HANDSHAKE_OFFER]);
int handshake_check(struct handshake *h, const unsigned char answer[HANDSHAKE_ANSWER],
                    unsigned char proof[HANDSHAKE_PROOF], unsigned *node,
                    struct link_keys *keys, struct ddp_err *err);

/* The calling side, with the key of its node. */
int handshake_answer(struct handshake *h, const struct secret *key, unsigned node,
                     const unsigned char offer[HANDSHAKE_OFFER],
                     unsigned char answer[HANDSHAKE_ANSWER], struct ddp_err *err);
int handshake_confirm(struct handshake *h, const unsigned char proof[HANDSHAKE_PROOF],
                      struct link_keys *keys, struct ddp_err *err);

#endif
