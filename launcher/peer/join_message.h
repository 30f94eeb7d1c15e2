/* launcher/peer/join_message.h - JOIN of a peer and JOINED of the head
 *
 * The bodies are rows of link/messages.def. Before there is a link they travel in records
 * of one size, sealed with the handshake's keys, whose nonce counters the link continues.
 */
#ifndef LAUNCHER_PEER_JOIN_MESSAGE_H
#define LAUNCHER_PEER_JOIN_MESSAGE_H

#include "common/secret.h"
#include "launcher/link/message.h"

enum { JOIN_PLAIN = 1024, JOIN_SIZE = JOIN_PLAIN + SEAL_EXTRA };

/* `m` is the struct of `type`, MSG_JOIN or MSG_JOINED. */
void join_message_seal(enum msg_type type, const void *m, struct seal *s,
                       unsigned char out[JOIN_SIZE]);
/* Fills `m`, for msg_finish(); -1: nothing is left allocated. */
int join_message_open(enum msg_type type, const unsigned char in[JOIN_SIZE],
                      struct seal *s, void *m, struct ddp_err *err);

#endif
