/* rendezvous/protocol/frame.h - where a request ends, and what is in it
 *
 * There is no length in front of a request: one has to walk through it. A frame remembers
 * how far it has walked, so that a request of a hundred thousand keys that arrives in
 * small pieces is walked through once. Every announced length is judged before its bytes
 * are waited for.
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
    size_t at;     /* bytes walked through */
    uint64_t left; /* strings to come in the list that `in_list` says we are in */
    uint8_t op, element;
    bool in_list;
};

struct request { /* borrowed from the bytes it was read from */
    enum op op;
    struct bytes key, value[2];
    int64_t number;
    struct packed list; /* of pairs for MULTI_SET: key and value in turns */
};

enum frame_state { FRAME_BAD = -1, FRAME_MORE, FRAME_WHOLE };

/* `in` is the request from its first byte, `n` of it are there (more than last time, or
 * all of a longer stretch). When whole, f->at is its size. A bad one sets `err`. */
enum frame_state frame_walk(struct frame *f, const struct dialect *d,
                            const struct frame_limits *limits, const uint8_t *in,
                            size_t n, struct ddp_err *err);
/* The parts of a whole request. */
void frame_request(const struct frame *f, const uint8_t *in, struct request *r);

#endif
