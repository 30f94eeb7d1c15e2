/* rendezvous/protocol/dialect.h - the numbers and shapes of TCPStore requests
 *
 * PyTorch's store protocol has been renumbered between releases and carries no version
 * number. Requests have the same shape in all of them (doc/tcpstore.md).
 */
#ifndef RENDEZVOUS_PROTOCOL_DIALECT_H
#define RENDEZVOUS_PROTOCOL_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TCPSTORE_MAGIC 0x3C85F7CEu

enum op {
    OP_VALIDATE,
    OP_SET,
    OP_COMPARE_SET,
    OP_GET,
    OP_ADD,
    OP_CHECK,
    OP_WAIT,
    OP_GETNUMKEYS,
    OP_DELETE_KEY,
    OP_APPEND,
    OP_MULTI_GET,
    OP_MULTI_SET,
    OP_CANCEL_WAIT,
    OP_PING,
    OP_QUEUE_PUSH,
    OP_QUEUE_POP,
    OP_QUEUE_LEN,
    OP_LIST_KEYS,
    OP_BARRIER,
    OP_WATCH_KEY,
    OP_NONE, /* no such number */
};

/* The fields after the opcode, a letter each: k key, v value, i 64-bit number,
 * n 32-bit number, K list of keys, P list of (key, value) pairs. */
struct op_info {
    const char *name, *shape;
};
extern const struct op_info op_infos[OP_NONE];

struct dialect {
    const char *spoken_by;
    const uint8_t *ops; /* enum op by opcode */
    size_t nops;
    /* Has CANCEL_WAIT: requests after a WAIT are held until the wait has ended. Without
     * it, a client that sends a request has abandoned its wait. */
    bool cancels;
};
extern const struct dialect dialect_d0, dialect_d2, dialect_d3;

/* How clients are understood that do not begin with the magic of PyTorch since 2.2. */
enum dialect_rule {
    DIALECT_AUTO, /* D3 by its magic; else D0, and D2 from the first number D0 lacks */
    DIALECT_D0,   /* D3 by its magic; else D0 */
    DIALECT_D2,   /* D3 by its magic; else D2 */
    DIALECT_D3,   /* nothing else */
};

static inline enum op dialect_op(const struct dialect *d, uint8_t opcode)
{
    return opcode < d->nops ? (enum op)d->ops[opcode] : OP_NONE;
}

#endif
