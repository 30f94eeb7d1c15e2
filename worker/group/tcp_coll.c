/* worker/group/tcp_coll.c - see tcp_coll.h
 *
 * An operation is a sequence of rounds; in each a member sends one message and receives
 * one, in turns of TCP_TURN bytes. Data to be stored are received in place; data to be
 * reduced are received into a scratch buffer that stays in the cache. A ring is a single
 * round: the message is the list of slices, and a byte is forwarded as soon as it has
 * been reduced, so that sending, receiving and reducing overlap without a chunk size to
 * tune.
 *
 * A message may be divided over several streams (tcp_streams.c): its data go in stripes
 * to one after the other, and its call, which tells how many there are, to the first one.
 */
#include "worker/group/tcp_coll.h"

#include "common/duration.h"
#include "common/mem.h"
#include "worker/group/coll.h"
#include "worker/group/reduce.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t no_limit = UINT64_MAX / 2;

static size_t lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- a message of a round ---- */

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
    struct iovec data = next_out(o);
    enum tcp_channel ch =
        tcp_stream_of(TCP_COLL, o->call.streams, f->sent, &data.iov_len);
    int nio = next_move(io, &f->out, &o->call, data);
    ssize_t n = nio > 0 ? tcp_send(tcp, f->out.peer, ch, io, nio, err) : 0;
    if (n <= 0)
        return n;
    size_t k = moved(&f->out, (size_t)n);
    f->out.at += k;
    f->sent += k;
    return n;
}

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
    bool checked = f->in.head == sizeof f->came;
    struct iovec room = next_in(o);
    if (!checked && room.iov_len > TCP_STRIPE)
        room.iov_len = 0; /* the call tells by which stream they come */
    enum tcp_channel ch =
        tcp_stream_of(TCP_COLL, f->came.streams, f->got + f->have, &room.iov_len);
    int nio = next_move(io, &f->in, &f->came, room);
    ssize_t n = nio > 0 ? tcp_recv(tcp, f->in.peer, ch, io, nio, err) : 0;
    if (n <= 0)
        return n;
    size_t data = moved(&f->in, (size_t)n);
    if (!checked && f->in.head == sizeof f->came && !coll_same(&o->call, &f->came)) {
        coll_disagree(o->team[o->me], &o->call, f->in.peer, &f->came, err);
        f->in.peer = -1; /* no rank is to blame */
        return -1;
    }
    if (!checked)
        f->began_ns = now_ns();
    if (!checked && data == 0 && f->in.head == sizeof f->came)
        return flow_in(tcp, o, err); /* the data are mostly there, too */
    if (f->in.piece < f->nreduce)
        data = reduce_in(o, data);
    f->in.at += data;
    f->got += data;
    return n;
}

static int flow_advance(struct tcp *tcp, struct tcp_op *o, int *culprit,
                        struct ddp_err *err)
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

/* ---- an operation ---- */

static void learn_streams(const struct tcp_op *o)
{
    const struct flow *f = &o->flow;
    if (o->me == 0)
        tcp_streams_measured(o->streams, o->n, f->sent, now_ns() - f->began_ns);
    else
        tcp_streams_follow(o->streams, f->came.streams);
}

/* How many streams the message of this round goes by: those that are connected. Short
 * messages, which go to more ranks, open none. */
static unsigned streams_for(struct tcp *tcp, const struct tcp_op *o)
{
    bool may_be_long = o->list || o->data.iov_len > TCP_STRIPE;
    if (o->flow.out.peer < 0 || !may_be_long)
        return 1;
    return tcp_widen(tcp, o->flow.out.peer, TCP_COLL, o->streams->n);
}

int tcp_op_advance(struct tcp *tcp, struct tcp_op *o, int *culprit, struct ddp_err *err)
{
    for (;;) {
        if (!o->under_way) {
            o->room = tcp->turn;
            o->flow = (struct flow){.out.peer = -1, .in.peer = -1, .credit = no_limit};
            if (!o->begin(o))
                return ADVANCE_DONE;
            o->call.streams = streams_for(tcp, o);
            o->under_way = true;
        }
        int rc = flow_advance(tcp, o, culprit, err);
        if (rc != ADVANCE_DONE)
            return rc;
        if (o->list) /* a ring */
            learn_streams(o);
        o->under_way = false;
        o->round++;
    }
}

void tcp_op_finish(struct tcp_op *o)
{
    free(o->list);
    o->list = NULL;
}

/* ---- rings: one round ---- */

static bool list_begin(struct tcp_op *o)
{
    struct flow *f = &o->flow;
    if (o->round > 0)
        return false;
    f->out.peer = o->team[(o->me + 1) % o->n];
    f->in.peer = o->team[(o->me + o->n - 1) % o->n];
    f->out.n = o->nlist - o->nlast;
    f->in.n = o->nlist - o->nfirst;
    f->nreduce = o->nreduce;
    f->credit = 0;
    for (unsigned i = 0; i < o->nfirst; i++)
        f->credit += o->list[i].iov_len;
    return true;
}

/* ---- recursive doubling ----
 * Two members swap their vectors, and each adds what comes to what it has sent. For two
 * in all that is as many bytes as around a ring, and nothing waits for a sum of the
 * other's, but each of them adds all: so the ring is better from PAIR_BYTES on.
 * With n not a power of two, n - p members first hand their vector to their left
 * neighbour and get the result at the end. */

static void exchange(struct tcp_op *o, int to, int from)
{
    if (to >= 0)
        o->flow.out = (struct message){.peer = o->team[to], .n = 1};
    if (from >= 0)
        o->flow.in = (struct message){.peer = o->team[from], .n = 1};
}

struct doubling {
    int p, extra;   /* largest power of two in n, and what is left */
    int place;      /* among the p; -1: handed its vector over */
    unsigned steps; /* log2 p */
};

static struct doubling doubling_of(const struct tcp_op *o)
{
    struct doubling d = {.p = 1};
    for (; d.p * 2 <= o->n; d.p *= 2)
        d.steps++;
    d.extra = o->n - d.p;
    d.place = o->me - d.extra;
    if (o->me < 2 * d.extra)
        d.place = o->me % 2 ? -1 : o->me / 2;
    return d;
}

/* The member that stands at place i of the p. */
static int doubling_member(const struct doubling *d, int i)
{
    return i < d->extra ? 2 * i : i + d->extra;
}

/* For a team that is no power of two: the right one of two neighbours hands its vector
 * over before the doubling and receives the result after it. */
static void doubling_pair(struct tcp_op *o, const struct doubling *d, bool back)
{
    if (o->me >= 2 * d->extra)
        return;
    int to = d->place < 0 ? o->me - 1 : -1, from = d->place < 0 ? -1 : o->me + 1;
    if (back)
        exchange(o, from, to);
    else
        exchange(o, to, from);
    o->flow.nreduce = back ? 0 : 1;
    o->flow.mine_left = true;
}

static bool doubling_begin(struct tcp_op *o)
{
    struct doubling d = doubling_of(o);
    if (o->round > d.steps + 1)
        return false;
    if (o->round == 0 || o->round > d.steps) {
        doubling_pair(o, &d, o->round > 0);
    } else if (d.place >= 0) {
        int bit = 1 << (o->round - 1), other = doubling_member(&d, d.place ^ bit);
        exchange(o, other, other);
        o->flow.nreduce = 1;
        o->flow.swaps = true;
        o->flow.mine_left = !(d.place & bit);
    }
    return true;
}

/* ---- broadcast: a binomial tree when short, a chain of relays when long; reduce: the
 * chain that ends at the root, added to by each ---- */

static bool tree_begin(struct tcp_op *o)
{
    int at = (o->me - o->root + o->n) % o->n, low = 1;
    while (low < o->n && !(at & low))
        low *= 2; /* the bit to my parent; the root's is above all */
    int round = (int)o->round - 1;
    if (o->round == 0) {
        if (at > 0)
            exchange(o, -1, (at - low + o->root) % o->n);
        return true;
    }
    int bit = low;
    do
        bit /= 2;
    while (bit > 0 && (at + bit >= o->n || round-- > 0));
    if (bit == 0)
        return false;
    exchange(o, (at + bit + o->root) % o->n, -1);
    return true;
}

static bool chain_begin(struct tcp_op *o)
{
    int first = o->nreduce > 0 ? o->root + 1 : o->root;
    int at = (o->me - first + 2 * o->n) % o->n;
    if (o->round > 0)
        return false;
    exchange(o, at + 1 < o->n ? (o->me + 1) % o->n : -1,
             at > 0 ? (o->me + o->n - 1) % o->n : -1);
    o->flow.credit = at == 0 ? no_limit : 0;
    o->flow.nreduce = o->nreduce;
    return true;
}

/* ---- starting ---- */

/* The slices in the order in which this member passes them on: around once to be reduced,
 * and again to be stored. */
static void ring_of_slices(struct tcp_op *o)
{
    size_t size = type_size(o->type), n = (size_t)o->n, count = o->data.iov_len / size;
    o->nlist = 2 * (unsigned)o->n - 1;
    o->nfirst = o->nlast = 1;
    o->nreduce = (unsigned)o->n - 1;
    o->list = xcalloc(o->nlist, sizeof *o->list);
    for (unsigned k = 0; k < o->nlist; k++) {
        size_t at = ((size_t)o->me + 2 * n - k) % n;
        size_t each = count / n, more = count % n;
        size_t from = at * each + (at < more ? at : more);
        o->list[k] = (struct iovec){(char *)o->data.iov_base + from * size,
                                    (each + (at < more)) * size};
    }
    tcp_ring(o);
}

void tcp_ring(struct tcp_op *o)
{
    o->begin = list_begin;
}

void tcp_all_reduce(struct tcp_op *o)
{
    o->begin = doubling_begin;
    if (o->data.iov_len > (o->n == 2 ? PAIR_BYTES : RING_BYTES))
        ring_of_slices(o);
}

void tcp_broadcast(struct tcp_op *o)
{
    o->begin = o->data.iov_len > RING_BYTES ? chain_begin : tree_begin;
}

void tcp_reduce(struct tcp_op *o)
{
    if (o->data.iov_len <= RING_BYTES) {
        tcp_all_reduce(o);
        return;
    }
    o->nreduce = 1;
    o->begin = chain_begin;
}
