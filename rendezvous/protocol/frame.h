/* rendezvous/protocol/frame.h - find the end of a request, and its fields
 *
 * A request has no length in front: it must be parsed to its end. A frame keeps the
 * position, so a request of a hundred thousand keys that arrives in small pieces is
 * parsed once. Every announced length is checked before its bytes are awaited.
 */
#ifndef RENDEZVOUS_PROTOCOL_FRAME_H
#define RENDEZVOUS_PROTOCOL_FRAME_H

#include "include/ddprun/err.h"
#include "rendezvous/protocol/dialect.h"
#include "rendezvous/store/bytes.h"

struct frame_limits {
    size_t max_key, max_value; /* bytes */
    size_t max_list;           /* keys, or pairs, in one request */
    size_t max_request;        /* bytes, all in all; at least one key and value */
};

struct frame {     /* zeroed: at the start of a request */
    size_t at;     /* bytes parsed */
    uint64_t left; /* strings left in the list, if `in_list` */
    uint8_t op, element;
    bool in_list;
};

struct request { /* borrowed from the bytes it was read from */
    enum op op;
    struct bytes key, value[2];
    int64_t number;
    struct packed list; /* of pairs for MULTI_SET: key and value alternate */
};

enum frame_state { FRAME_BAD = -1, FRAME_MORE, FRAME_WHOLE };

/* `in` is the request from its first byte, of which `n` bytes have arrived (more than in
 * the last call). When it is complete f->at is its size. A malformed one sets `err`. */
enum frame_state frame_walk(struct frame *f, const struct dialect *d,
                            const struct frame_limits *limits, const uint8_t *in,
                            size_t n, struct ddp_err *err);
/* The fields of a complete request. */
void frame_request(const struct frame *f, const uint8_t *in, struct request *r);

#endif
