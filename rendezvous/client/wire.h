/* rendezvous/client/wire.h - TCPStore requests as bytes
 *
 * A growing buffer for requests, one after the other, in the format of
 * doc/tcpstore.md (PyTorch >= 2.2: numbers little-endian, a string is its length as u64
 * and its bytes, a list its count as u64 and its strings). No socket, no state of the
 * connection.
 *
 * An allocation failure sets `failed`, so a request is built without a check of each
 * step; nothing of it may be sent then.
 */
#ifndef RENDEZVOUS_CLIENT_WIRE_H
#define RENDEZVOUS_CLIENT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum wire_op {
    WIRE_VALIDATE = 0,
    WIRE_SET = 1,
    WIRE_COMPARE_SET = 2,
    WIRE_GET = 3,
    WIRE_ADD = 4,
    WIRE_CHECK = 5,
    WIRE_WAIT = 6,
    WIRE_GETNUMKEYS = 7,
    WIRE_DELETE_KEY = 8,
    WIRE_APPEND = 9,
    WIRE_MULTI_GET = 10,
    WIRE_MULTI_SET = 11,
    WIRE_CANCEL_WAIT = 12,
    WIRE_QUEUE_PUSH = 14,
    WIRE_QUEUE_POP = 15,
    WIRE_QUEUE_LEN = 16,
    WIRE_BARRIER = 18,
};

#define WIRE_MAGIC 0x3C85F7CEu /* what VALIDATE carries */

/* The limits of PyTorch's server; beyond them it closes the connection. */
#define WIRE_KEY_MAX   8192 /* with the "/" in front */
#define WIRE_VALUE_MAX 8388608
#define WIRE_LIST_MAX  131072

struct wire {
    unsigned char *data; /* owned */
    size_t n, room;
    bool failed;
};

void wire_finish(struct wire *w); /* frees; w is empty afterwards */
void wire_clear(struct wire *w);  /* keeps the memory, unless it is large */

void wire_op(struct wire *w, enum wire_op op);
void wire_u32(struct wire *w, uint32_t v);
void wire_u64(struct wire *w, uint64_t v);
void wire_str(struct wire *w, const void *data, size_t size);
/* A key of the caller: "/" goes in front, as PyTorch's clients do it. */
void wire_key(struct wire *w, const char *key);

uint64_t wire_read_u64(const unsigned char bytes[8]);

#endif
