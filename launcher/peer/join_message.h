/* launcher/peer/join_message.h - join request and reply of a peer and the head
 *
 * One record of a fixed size each way, sealed with the handshake's keys; the link that
 * follows (link/link.h) continues their nonce counters.
 *
 *     peer -> head   request   instances on its machine, host name, slots
 *     head -> peer   reply     its node number, or why the job does not start
 */
#ifndef LAUNCHER_PEER_JOIN_MESSAGE_H
#define LAUNCHER_PEER_JOIN_MESSAGE_H

#include "launcher/link/link.h"

#include <stdint.h>

enum { JOIN_PLAIN = 1024, JOIN_SIZE = JOIN_PLAIN + SEAL_EXTRA };

struct join_request {
    uint32_t copies;  /* instances of ddprun on this machine */
    uint32_t slots;   /* from its scheduler; 0: unknown */
    char *host;       /* owned: gethostname() */
    char *slots_from; /* owned, or NULL: the source of `slots`, for messages */
};
void join_request_seal(const struct join_request *n, struct seal *s,
                       unsigned char out[JOIN_SIZE]);
int join_request_open(const unsigned char in[JOIN_SIZE], struct seal *s,
                      struct join_request *n, struct ddp_err *err);
void join_request_finish(struct join_request *n);

struct join_reply {
    bool welcome;
    uint32_t node, nnodes;
    uint32_t code; /* exit code if not welcome */
    char *why;     /* owned: the reason if not welcome */
};
void join_reply_seal(const struct join_reply *n, struct seal *s,
                     unsigned char out[JOIN_SIZE]);
int join_reply_open(const unsigned char in[JOIN_SIZE], struct seal *s,
                    struct join_reply *n, struct ddp_err *err);

#endif
