/* rendezvous/protocol/dialect.c - see dialect.h */
#include "rendezvous/protocol/dialect.h"

const struct op_info op_infos[OP_NONE] = {
    [OP_VALIDATE] = {"VALIDATE", "n"},
    [OP_SET] = {"SET", "kv"},
    [OP_COMPARE_SET] = {"COMPARE_SET", "kvv"},
    [OP_GET] = {"GET", "k"},
    [OP_ADD] = {"ADD", "ki"},
    [OP_CHECK] = {"CHECK", "K"},
    [OP_WAIT] = {"WAIT", "K"},
    [OP_GETNUMKEYS] = {"GETNUMKEYS", ""},
    [OP_DELETE_KEY] = {"DELETE_KEY", "k"},
    [OP_APPEND] = {"APPEND", "kv"},
    [OP_MULTI_GET] = {"MULTI_GET", "K"},
    [OP_MULTI_SET] = {"MULTI_SET", "P"},
    [OP_CANCEL_WAIT] = {"CANCEL_WAIT", ""},
    [OP_PING] = {"PING", "n"},
    [OP_QUEUE_PUSH] = {"QUEUE_PUSH", "kv"},
    [OP_QUEUE_POP] = {"QUEUE_POP", "k"},
    [OP_QUEUE_LEN] = {"QUEUE_LEN", "k"},
    [OP_LIST_KEYS] = {"LIST_KEYS", ""},
    [OP_BARRIER] = {"BARRIER", "ki"},
    [OP_WATCH_KEY] = {"WATCH_KEY", "k"},
};

static const uint8_t d0_ops[] = {OP_SET,        OP_COMPARE_SET, OP_GET,
                                 OP_ADD,        OP_CHECK,       OP_WAIT,
                                 OP_GETNUMKEYS, OP_WATCH_KEY,   OP_DELETE_KEY};

static const uint8_t d2_ops[] = {
    OP_SET,        OP_COMPARE_SET, OP_GET,    OP_ADD,       OP_CHECK,     OP_WAIT,
    OP_GETNUMKEYS, OP_DELETE_KEY,  OP_APPEND, OP_MULTI_GET, OP_MULTI_SET, OP_CANCEL_WAIT};

static const uint8_t d3_ops[] = {
    OP_VALIDATE,  OP_SET,       OP_COMPARE_SET, OP_GET,        OP_ADD,
    OP_CHECK,     OP_WAIT,      OP_GETNUMKEYS,  OP_DELETE_KEY, OP_APPEND,
    OP_MULTI_GET, OP_MULTI_SET, OP_CANCEL_WAIT, OP_PING,       OP_QUEUE_PUSH,
    OP_QUEUE_POP, OP_QUEUE_LEN, OP_LIST_KEYS,   OP_BARRIER};

const struct dialect dialect_d0 = {"PyTorch up to 2.0", d0_ops, sizeof d0_ops, false};
const struct dialect dialect_d2 = {"PyTorch 2.1", d2_ops, sizeof d2_ops, true};
const struct dialect dialect_d3 = {"PyTorch since 2.2", d3_ops, sizeof d3_ops, true};
