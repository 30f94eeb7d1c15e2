/* worker/group/tcp_flow.c - one round of a collective: one message out and one in
 * (tcp_coll.h)
 *
 * Sending and receiving alternate, TCP_TURN bytes each. Data to be stored are received
 * in place; data to be reduced are received into a scratch buffer that stays in the
 * cache.
 */
#include "worker/group/tcp_coll.h"

#include "common/err.h"
#include "worker/group/coll.h"
#include "worker/group/reduce.h"

#include <string.h>

static size_t lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- out ---- */

static const struct iovec *piece_of(const struct tcp_op *o, unsigned k)
{
    return o->list ? &o->list[k] : &o->data;
}

/* The unsent rest of the current piece, as much as may be sent now. */
static struct iovec next_out(struct tcp_op *o)
{
    struct flow *f = &o->flow;
    while (f->piece_out < f->nout && f->out_at == piece_of(o, f->piece_out)->iov_len) {
        f->piece_out++;
        f->out_at = 0;
    }
    if (f->piece_out == f->nout)
        return (struct iovec){NULL, 0};
    const struct iovec *p = piece_of(o, f->piece_out);
    uint64_t may = f->credit + f->got - f->sent;
    return (struct iovec){(char *)p->iov_base + f->out_at,
                          lesser(p->iov_len - f->out_at, lesser(may, TCP_TURN))};
}

/* Returns the bytes sent, 0 when nothing can be sent now, or -1. */
static ssize_t flow_out(struct tcp *tcp, struct tcp_op *o, struct ddp_err *err)
{
    struct flow *f = &o->flow;
    struct iovec io[2];
    size_t head_left = sizeof o->head - f->head_out;
    if (f->to < 0)
        return 0;
    int nio = 0;
    if (head_left > 0)
        io[nio++] = (struct iovec){(char *)&o->head + f->head_out, head_left};
    io[nio] = next_out(o);
    nio += io[nio].iov_len > 0;
    if (nio == 0)
        return 0;
    ssize_t n = tcp_send(tcp, f->to, TCP_COLL, io, nio, err);
    if (n <= 0)
        return n;
    size_t of_head = lesser((size_t)n, head_left);
    f->head_out += of_head;
    f->out_at += (size_t)n - of_head;
    f->sent += (size_t)n - of_head;
    return n;
}

/* ---- in ---- */

static int head_check(const struct tcp_op *o, struct ddp_err *err)
{
    const struct head *mine = &o->head, *came = &o->flow.came;
    struct call here = {mine->number, mine->bytes, mine->what};
    struct call there = {came->number, came->bytes, came->what};
    if (came->magic == mine->magic && coll_same(&here, &there))
        return 0;
    return coll_disagree(o->team[o->me], &here, o->flow.from, &there, err);
}

/* Where to receive the next bytes, and how many. */
static struct iovec next_in(struct tcp_op *o)
{
    struct flow *f = &o->flow;
    while (f->piece_in < f->nin &&
           f->in_at == piece_of(o, o->nfirst + f->piece_in)->iov_len) {
        f->piece_in++;
        f->in_at = 0;
    }
    if (f->piece_in == f->nin)
        return (struct iovec){NULL, 0};
    const struct iovec *p = piece_of(o, o->nfirst + f->piece_in);
    size_t left = p->iov_len - f->in_at;
    if (f->piece_in >= f->nreduce)
        return (struct iovec){(char *)p->iov_base + f->in_at, lesser(left, TCP_TURN)};
    size_t room = TCP_TURN - f->have;
    if (f->swaps) /* unsent data must not be changed yet */
        room = lesser(room, f->sent - f->got - f->have);
    return (struct iovec){o->room + f->have, lesser(left - f->have, room)};
}

/* Reduce the received bytes into their piece, whole elements at a time. */
static void reduce_in(struct tcp_op *o, size_t n)
{
    struct flow *f = &o->flow;
    size_t size = type_size(o->type);
    char *mine = (char *)piece_of(o, o->nfirst + f->piece_in)->iov_base + f->in_at;
    f->have += n;
    size_t whole = f->have / size * size;
    reduce_two(mine, f->mine_left ? mine : o->room, f->mine_left ? o->room : mine,
               whole / size, o->type, o->op);
    f->have -= whole;
    memmove(o->room, o->room + whole, f->have);
    f->in_at += whole;
    f->got += whole;
}

static ssize_t flow_in(struct tcp *tcp, struct tcp_op *o, struct ddp_err *err)
{
    struct flow *f = &o->flow;
    struct iovec io[2];
    size_t head_left = sizeof f->came - f->head_in;
    if (f->from < 0)
        return 0;
    int nio = 0;
    if (head_left > 0)
        io[nio++] = (struct iovec){(char *)&f->came + f->head_in, head_left};
    io[nio] = next_in(o);
    nio += io[nio].iov_len > 0;
    if (nio == 0)
        return 0;
    ssize_t n = tcp_recv(tcp, f->from, TCP_COLL, io, nio, err);
    if (n <= 0)
        return n;
    size_t of_head = lesser((size_t)n, head_left), data = (size_t)n - of_head;
    f->head_in += of_head;
    if (of_head > 0 && f->head_in == sizeof f->came && head_check(o, err) < 0) {
        f->from = -1; /* no rank is to blame */
        return -1;
    }
    if (f->piece_in < f->nreduce) {
        reduce_in(o, data);
    } else {
        f->in_at += data;
        f->got += data;
    }
    return n;
}

/* ---- both ---- */

static bool flow_done(const struct flow *f)
{
    return (f->to < 0 || (f->piece_out == f->nout && f->head_out == sizeof f->came)) &&
           (f->from < 0 || (f->piece_in == f->nin && f->head_in == sizeof f->came));
}

int tcp_flow_advance(struct tcp *tcp, struct tcp_op *o, int *culprit, struct ddp_err *err)
{
    for (;;) {
        ssize_t out = flow_out(tcp, o, err);
        if (out < 0) {
            *culprit = o->flow.to;
            return ADVANCE_ERROR;
        }
        ssize_t in = flow_in(tcp, o, err);
        if (in < 0) {
            *culprit = o->flow.from;
            return ADVANCE_ERROR;
        }
        if (flow_done(&o->flow))
            return ADVANCE_DONE;
        if (out == 0 && in == 0)
            return ADVANCE_LATER;
    }
}
