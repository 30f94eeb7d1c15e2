/* launcher/link/handshake.h - both ends of a new connection prove that they know the key
 *
 * Challenge and response with the job's key, which never travels. Pure: bytes in, bytes
 * out; who reads and writes them is starter.c on the listening side and call.c on the
 * other. From the two nonces come two fresh keys for the link, one per direction.
 *
 *     listener -> caller   offer    "DDPRUN" version(2) nonce(32)
 *     caller -> listener   answer   "DDPRUN" version(2) node(2) nonce(32) proof(32)
 *     listener -> caller   proof    proof(32)
 */
#ifndef LAUNCHER_LINK_HANDSHAKE_H
#define LAUNCHER_LINK_HANDSHAKE_H

#include "launcher/link/link.h"

enum { HANDSHAKE_OFFER = 40, HANDSHAKE_ANSWER = 74, HANDSHAKE_PROOF = SECRET_SIZE };

struct handshake {
    struct secret key;         /* of the job */
    struct secret here, there; /* nonces: ours, theirs */
    unsigned node;
};

/* The listening side: the offer; then the answer's check, which gives the proof to send
 * back, who calls, and the keys of the link. */
int handshake_offer(struct handshake *h, const struct secret *key,
                    unsigned char offer[HANDSHAKE_OFFER], struct ddp_err *err);
int handshake_check(struct handshake *h, const unsigned char answer[HANDSHAKE_ANSWER],
                    unsigned char proof[HANDSHAKE_PROOF], unsigned *node,
                    struct link_keys *keys, struct ddp_err *err);

/* The calling side. */
int handshake_answer(struct handshake *h, const struct secret *key, unsigned node,
                     const unsigned char offer[HANDSHAKE_OFFER],
                     unsigned char answer[HANDSHAKE_ANSWER], struct ddp_err *err);
int handshake_confirm(struct handshake *h, const unsigned char proof[HANDSHAKE_PROOF],
                      struct link_keys *keys, struct ddp_err *err);

#endif
