/* launcher/peer/join_message.h - what the head and a peer say to each other before the
 * job
 *
 * One record of a fixed size each way, sealed with the keys of the handshake, whose
 * counts go on in the link that follows (link/link.h).
 *
 *     peer -> head   here     how many copies its machine has, its name, its slots
 *     head -> peer   answer   which node it is; or why there will be no job
 */
#ifndef LAUNCHER_PEER_JOIN_MESSAGE_H
#define LAUNCHER_PEER_JOIN_MESSAGE_H

#include "launcher/link/link.h"

#include <stdint.h>

enum { JOIN_PLAIN = 1024, JOIN_SIZE = JOIN_PLAIN + SEAL_EXTRA };

struct join_request {
    uint32_t copies;  /* of ddprun on this machine */
    uint32_t slots;   /* that its scheduler gives it there; 0: not said */
    char *host;       /* owned: as the machine calls itself */
    char *slots_from; /* owned, or NULL: who said so */
};
void join_request_seal(const struct join_request *n, struct seal *s,
                       unsigned char out[JOIN_SIZE]);
int join_request_open(const unsigned char in[JOIN_SIZE], struct seal *s,
                      struct join_request *n, struct ddp_err *err);
void join_request_finish(struct join_request *n);

struct join_reply {
    bool welcome;
    uint32_t node, nnodes;
    uint32_t code; /* exit code, when not */
    char *why;     /* owned: when not */
};
void join_reply_seal(const struct join_reply *n, struct seal *s,
                     unsigned char out[JOIN_SIZE]);
int join_reply_open(const unsigned char in[JOIN_SIZE], struct seal *s,
                    struct join_reply *n, struct ddp_err *err);

#endif
