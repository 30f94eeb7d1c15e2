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

/* ---- a message ---- */

/* Its current piece, in the operation's list from piece `first` on; NULL: all are done.
 */
static const struct iovec *piece_of(const struct tcp_op *o, struct message *m,
                                    unsigned first)
{
    const struct iovec *list = (o->list ? o->list : &o->data) + first;
    for (; m->piece < m->n; m->piece++, m->at = 0) {
        if (m->at < list[m->piece].iov_len)
            return &list[m->piece];
    }
    return NULL;
}

/* What to move next: the rest of the call, and data. Returns how many of the two. */
static int next_move(struct iovec io[2], const struct message *m, struct call *call,
                     struct iovec data)
{
    int n = 0;
    if (m->head < sizeof *call)
        io[n++] = (struct iovec){(char *)call + m->head, sizeof *call - m->head};
    io[n] = data;
    return n + (data.iov_len > 0);
}

/* `n` bytes have moved; returns how many of them are data. */
static size_t moved(struct message *m, size_t n)
{
    size_t of_call = lesser(n, sizeof(struct call) - m->head);
    m->head += of_call;
    return n - of_call;
}

static bool is_done(const struct message *m)
{
    return m->peer < 0 || (m->piece == m->n && m->head == sizeof(struct call));
}

/* ---- out ---- */

/* The unsent rest of the current piece, as much as may be sent now. */
static struct iovec next_out(struct tcp_op *o)
{
    struct flow *f = &o->flow;
    const struct iovec *p = piece_of(o, &f->out, 0);
    if (!p)
        return (struct iovec){NULL, 0};
    uint64_t may = f->credit + f->got - f->sent;
    return (struct iovec){(char *)p->iov_base + f->out.at,
                          lesser(p->iov_len - f->out.at, lesser(may, TCP_TURN))};
}

/* Returns the bytes sent, 0 when nothing can be sent now, or -1. */
static ssize_t flow_out(struct tcp *tcp, struct tcp_op *o, struct ddp_err *err)
{
    struct flow *f = &o->flow;
    struct iovec io[2];
    if (f->out.peer < 0)
        return 0;
    int nio = next_move(io, &f->out, &o->call, next_out(o));
    ssize_t n = nio > 0 ? tcp_send(tcp, f->out.peer, TCP_COLL, io, nio, err) : 0;
    if (n <= 0)
        return n;
    size_t data = moved(&f->out, (size_t)n);
    f->out.at += data;
    f->sent += data;
    return n;
}

/* ---- in ---- */

/* Where to receive the next bytes, and how many. */
static struct iovec next_in(struct tcp_op *o)
{
    struct flow *f = &o->flow;
    const struct iovec *p = piece_of(o, &f->in, o->nfirst);
    if (!p)
        return (struct iovec){NULL, 0};
    size_t left = p->iov_len - f->in.at;
    if (f->in.piece >= f->nreduce)
        return (struct iovec){(char *)p->iov_base + f->in.at, lesser(left, TCP_TURN)};
    size_t room = TCP_TURN - f->have;
    if (f->swaps) /* unsent data must not be changed yet */
        room = lesser(room, f->sent - f->got - f->have);
    return (struct iovec){o->room + f->have, lesser(left - f->have, room)};
}

/* Reduce the received bytes into their piece, whole elements at a time. Returns how many
 * have been. */
static size_t reduce_in(struct tcp_op *o, size_t n)
{
    struct flow *f = &o->flow;
    size_t size = type_size(o->type), whole = (f->have + n) / size * size;
    const struct iovec *p = whole ? piece_of(o, &f->in, o->nfirst) : NULL;
    f->have += n - whole;
    if (!p)
        return 0;
    char *mine = (char *)p->iov_base + f->in.at;
    reduce_two(mine, f->mine_left ? mine : o->room, f->mine_left ? o->room : mine,
               whole / size, o->type, o->op);
    memmove(o->room, o->room + whole, f->have);
    return whole;
}

static ssize_t flow_in(struct tcp *tcp, struct tcp_op *o, struct ddp_err *err)
{
    struct flow *f = &o->flow;
    struct iovec io[2];
    if (f->in.peer < 0)
        return 0;
    int nio = next_move(io, &f->in, &f->came, next_in(o));
    ssize_t n = nio > 0 ? tcp_recv(tcp, f->in.peer, TCP_COLL, io, nio, err) : 0;
    if (n <= 0)
        return n;
    bool checked = f->in.head == sizeof f->came;
    size_t data = moved(&f->in, (size_t)n);
    if (!checked && f->in.head == sizeof f->came && !coll_same(&o->call, &f->came)) {
        coll_disagree(o->team[o->me], &o->call, f->in.peer, &f->came, err);
        f->in.peer = -1; /* no rank is to blame */
        return -1;
    }
    if (f->in.piece < f->nreduce)
        data = reduce_in(o, data);
    f->in.at += data;
    f->got += data;
    return n;
}

/* ---- both ---- */

int tcp_flow_advance(struct tcp *tcp, struct tcp_op *o, int *culprit, struct ddp_err *err)
{
    for (;;) {
        ssize_t out = flow_out(tcp, o, err);
        ssize_t in = out < 0 ? 0 : flow_in(tcp, o, err);
        if (out < 0 || in < 0) {
            *culprit = out < 0 ? o->flow.out.peer : o->flow.in.peer;
            return ADVANCE_ERROR;
        }
        if (is_done(&o->flow.out) && is_done(&o->flow.in))
            return ADVANCE_DONE;
        if (out == 0 && in == 0)
            return ADVANCE_LATER;
    }
}
