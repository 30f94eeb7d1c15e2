/* launcher/link/handshake.h - mutual authentication of a new connection
 *
 * Challenge and response with the key of the caller's node, which is never sent.
 * Pure functions on bytes; the I/O is in transport/accept.c on the listening side and in
 * bootstrap.c on the other. Each side sends a fresh public key (X25519), which is
 * also the challenge; the link's keys, one per direction, are derived from the shared
 * secret and the node's key. A recorded link cannot be decrypted with a node key learnt
 * later.
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
    struct secret key; /* the node's; at the listener the job's until the answer */
    struct exchange own;
    unsigned char theirs[SECRET_SIZE]; /* the other side's public key */
};

/* The key of one node. It reveals neither the job's key nor those of other nodes. */
void handshake_node_key(const struct secret *job, unsigned node, struct secret *key);

/* The listening side, which has the job's key: make the offer; then check the answer,
 * which gives the proof to send back, the caller's node, and the link's keys. */
void handshake_offer(struct handshake *h, const struct secret *job,
                     unsigned char offer[HANDSHAKE_OFFER]);
int handshake_check(struct handshake *h, const unsigned char answer[HANDSHAKE_ANSWER],
                    unsigned char proof[HANDSHAKE_PROOF], unsigned *node,
                    struct link_keys *keys, struct ddp_err *err);

/* The calling side, which has its node's key. */
int handshake_answer(struct handshake *h, const struct secret *key, unsigned node,
                     const unsigned char offer[HANDSHAKE_OFFER],
                     unsigned char answer[HANDSHAKE_ANSWER], struct ddp_err *err);
int handshake_confirm(struct handshake *h, const unsigned char proof[HANDSHAKE_PROOF],
                      struct link_keys *keys, struct ddp_err *err);

#endif
