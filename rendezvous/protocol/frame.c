/* rendezvous/protocol/frame.c - see frame.h */
#include "rendezvous/protocol/frame.h"

#include "common/err.h"

#include <inttypes.h>

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Skip one string if all of it has arrived. */
static enum frame_state walk_string(struct frame *f, const struct frame_limits *limits,
                                    bool is_key, const uint8_t *in, size_t n,
                                    struct ddp_err *err)
{
    if (n - f->at < sizeof(uint64_t))
        return FRAME_MORE;
    uint64_t size = load64(in + f->at);
    size_t max = is_key ? limits->max_key : limits->max_value;
    if (size > max) {
        err_set(err, "%s announced a %s of %" PRIu64 " bytes, %zu are allowed",
                op_infos[f->op].name, is_key ? "key" : "value", size, max);
        return FRAME_BAD;
    }
    size_t end = f->at + sizeof size + (size_t)size;
    if (end > limits->max_request) {
        err_set(err, "%s is longer than the %zu bytes allowed in one request",
                op_infos[f->op].name, limits->max_request);
        return FRAME_BAD;
    }
    if (end > n)
        return FRAME_MORE;
    f->at = end;
    return FRAME_WHOLE;
}

static enum frame_state walk_list(struct frame *f, const struct frame_limits *limits,
                                  bool pairs, const uint8_t *in, size_t n,
                                  struct ddp_err *err)
{
    if (!f->in_list) {
        if (n - f->at < sizeof(uint64_t))
            return FRAME_MORE;
        uint64_t count = load64(in + f->at);
        if (count > limits->max_list) {
            err_set(err, "%s announced %" PRIu64 " keys, %zu are allowed",
                    op_infos[f->op].name, count, limits->max_list);
            return FRAME_BAD;
        }
        f->left = pairs ? 2 * count : count;
        f->in_list = true;
        f->at += sizeof count;
    }
    while (f->left > 0) {
        bool is_key = !pairs || f->left % 2 == 0;
        enum frame_state state = walk_string(f, limits, is_key, in, n, err);
        if (state != FRAME_WHOLE)
            return state;
        f->left--;
    }
    f->in_list = false;
    return FRAME_WHOLE;
}

static enum frame_state walk_number(struct frame *f, size_t size, size_t n)
{
    if (n - f->at < size)
        return FRAME_MORE;
    f->at += size;
    return FRAME_WHOLE;
}

static enum frame_state walk_element(struct frame *f, char shape,
                                     const struct frame_limits *limits, const uint8_t *in,
                                     size_t n, struct ddp_err *err)
{
    switch (shape) {
    case 'k':
    case 'v':
        return walk_string(f, limits, shape == 'k', in, n, err);
    case 'K':
    case 'P':
        return walk_list(f, limits, shape == 'P', in, n, err);
    case 'i':
        return walk_number(f, sizeof(int64_t), n);
    default:
        return walk_number(f, sizeof(uint32_t), n);
    }
}

enum frame_state frame_walk(struct frame *f, const struct dialect *d,
                            const struct frame_limits *limits, const uint8_t *in,
                            size_t n, struct ddp_err *err)
{
    if (f->at == 0) {
        if (n == 0)
            return FRAME_MORE;
        f->op = (uint8_t)dialect_op(d, in[0]);
        if (f->op == OP_NONE) {
            err_set(err, "there is no request %d in the protocol of %s", in[0],
                    d->spoken_by);
            return FRAME_BAD;
        }
        f->at = 1;
    }
    const char *shape = op_infos[f->op].shape;
    while (shape[f->element]) {
        enum frame_state state = walk_element(f, shape[f->element], limits, in, n, err);
        if (state != FRAME_WHOLE)
            return state;
        f->element++;
    }
    return FRAME_WHOLE;
}

void frame_request(const struct frame *f, const uint8_t *in, struct request *r)
{
    const uint8_t *at = in + 1;
    size_t nvalues = 0;
    r->op = (enum op)f->op;
    for (const char *shape = op_infos[f->op].shape; *shape; shape++) {
        switch (*shape) {
        case 'k':
            r->key = packed_next(&at);
            break;
        case 'v':
            r->value[nvalues++] = packed_next(&at);
            break;
        case 'i':
            r->number = (int64_t)load64(at);
            at += sizeof(int64_t);
            break;
        case 'n':
            r->number = load32(at);
            at += sizeof(uint32_t);
            break;
        default: /* a list is always the last */
            r->list = (struct packed){at + sizeof(uint64_t),
                                      f->at - (size_t)(at + sizeof(uint64_t) - in),
                                      (size_t)load64(at)};
        }
    }
}
