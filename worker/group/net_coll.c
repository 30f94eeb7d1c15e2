/* worker/group/net_coll.c - see net_coll.h
 *
 * An operation is a row of rounds; in each a member sends one message and receives one.
 * In the rings it is a single round: the message is the row of slices, and a byte can go
 * out as soon as the one that came in before it has been reduced, so that sending,
 * receiving and adding overlap without any chunk size to choose.
 */
#include "worker/group/net_coll.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/coll.h"
#include "worker/group/reduce.h"

#include <stdlib.h>
#include <string.h>

/* What is sent, or received, before the other direction has its turn: long enough that
 * the calls do not count, short enough that what comes is still in the caches of the CPU
 * that sent it, or of mine when it is added to. */
enum { TURN_BYTES = 262144, HEAD_MAGIC = 0x63706464 };

static const uint64_t no_limit = UINT64_MAX / 2;

/* ---- a round ---- */

static void piece_of(const struct net_op *o, bool out, char **p, size_t *bytes)
{
    const struct flow *f = &o->flow;
    o->piece(o, out, out ? f->kout : f->kin, p, bytes);
}

/* Bytes sent, 0 when there is nothing to send now, -1. */
static ssize_t flow_out(struct net *net, struct net_op *o, struct ddp_err *err)
{
    struct flow *f = &o->flow;
    struct iovec io[2];
    int nio = 0;
    char *p = NULL;
    size_t bytes = 0, head_left = sizeof o->head - f->head_out;
    if (f->to < 0)
        return 0;
    if (head_left > 0)
        io[nio++] = (struct iovec){(char *)&o->head + f->head_out, head_left};
    while (f->kout < f->nout) {
        piece_of(o, true, &p, &bytes);
        if (f->out_at < bytes)
            break;
        f->kout++;
        f->out_at = 0;
    }
    if (f->kout < f->nout) {
        uint64_t may = f->credit + f->got - f->sent;
        size_t turn = may < TURN_BYTES ? (size_t)may : TURN_BYTES;
        size_t left = bytes - f->out_at;
        if (may > 0)
            io[nio++] = (struct iovec){p + f->out_at, left < turn ? left : turn};
    }
    if (nio == 0)
        return 0;
    ssize_t n = net_send(net, f->to, NET_COLL, io, nio, err);
    if (n <= 0)
        return n;
    size_t of_head = (size_t)n < head_left ? (size_t)n : head_left;
    f->head_out += of_head;
    f->out_at += (size_t)n - of_head;
    f->sent += (size_t)n - of_head;
    return n;
}

static int head_check(const struct net_op *o, struct ddp_err *err)
{
    const struct head *mine = &o->head, *came = &o->flow.came;
    if (came->magic == mine->magic && came->what == mine->what &&
        came->bytes == mine->bytes && came->number == mine->number)
        return 0;
    char here[128], there[128];
    coll_describe(mine->what, mine->bytes, here, sizeof here);
    coll_describe(came->what, came->bytes, there, sizeof there);
    return err_set(err,
                   "the ranks disagree on a collective: rank %d calls %s as its #%llu, "
                   "rank %d calls %s as its #%llu",
                   o->team[o->me], here, (unsigned long long)mine->number, o->flow.from,
                   there, (unsigned long long)came->number);
}

/* The next bytes of a piece that is reduced: through scratch, whole elements at a time,
 * what has come on the left. */
static ssize_t reduce_in(struct net *net, struct net_op *o, char *p, size_t bytes,
                         struct ddp_err *err)
{
    struct flow *f = &o->flow;
    size_t left = bytes - f->in_at - f->have, room = TURN_BYTES - f->have;
    ssize_t n = net_recv(net, f->from, NET_COLL, o->scratch + f->have,
                         left < room ? left : room, err);
    if (n <= 0)
        return n;
    f->have += (size_t)n;
    size_t size = type_size(o->type), whole = f->have / size * size;
    reduce_two(p + f->in_at, o->scratch, p + f->in_at, whole / size, o->type, o->op);
    f->have -= whole;
    memmove(o->scratch, o->scratch + whole, f->have);
    f->in_at += whole;
    f->got += whole;
    return n;
}

static ssize_t flow_in(struct net *net, struct net_op *o, struct ddp_err *err)
{
    struct flow *f = &o->flow;
    if (f->from < 0)
        return 0;
    if (f->head_in < sizeof f->came) {
        ssize_t n = net_recv(net, f->from, NET_COLL, (char *)&f->came + f->head_in,
                             sizeof f->came - f->head_in, err);
        f->head_in += n > 0 ? (size_t)n : 0;
        if (n > 0 && f->head_in == sizeof f->came && head_check(o, err) < 0) {
            f->from = -1; /* nobody is to blame */
            return -1;
        }
        return n;
    }
    char *p = NULL;
    size_t bytes = 0;
    for (; f->kin < f->nin; f->kin++, f->in_at = 0) {
        piece_of(o, false, &p, &bytes);
        if (f->in_at < bytes)
            break;
    }
    if (f->kin == f->nin)
        return 0;
    if (f->kin < f->nreduce)
        return reduce_in(net, o, p, bytes, err);
    size_t left = bytes - f->in_at;
    ssize_t n = net_recv(net, f->from, NET_COLL, p + f->in_at,
                         left < TURN_BYTES ? left : TURN_BYTES, err);
    if (n > 0) {
        f->in_at += (size_t)n;
        f->got += (size_t)n;
    }
    return n;
}

static bool flow_done(const struct flow *f)
{
    return (f->to < 0 || (f->kout == f->nout && f->head_out == sizeof f->came)) &&
           (f->from < 0 || (f->kin == f->nin && f->head_in == sizeof f->came));
}

static int flow_advance(struct net *net, struct net_op *o, int *culprit,
                        struct ddp_err *err)
{
    for (;;) {
        ssize_t out = flow_out(net, o, err);
        if (out < 0) {
            *culprit = o->flow.to;
            return ADVANCE_ERROR;
        }
        ssize_t in = flow_in(net, o, err);
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

int net_op_advance(struct net *net, struct net_op *o, int *culprit, struct ddp_err *err)
{
    for (;;) {
        if (!o->under_way) {
            o->flow = (struct flow){.to = -1, .from = -1, .credit = no_limit};
            if (!o->algorithm->begin(o))
                return ADVANCE_DONE;
            o->under_way = true;
        }
        int rc = flow_advance(net, o, culprit, err);
        if (rc != ADVANCE_DONE)
            return rc;
        o->algorithm->end(o);
        o->under_way = false;
        o->round++;
    }
}

void net_op_finish(struct net_op *o)
{
    free(o->scratch);
    free(o->list);
    o->scratch = NULL;
    o->list = NULL;
}

static struct net_op op_make(struct head head, const int *team, int n, int me, void *data,
                             size_t count, enum ddp_type type, enum ddp_op op)
{
    head.magic = HEAD_MAGIC;
    return (struct net_op){.head = head,
                           .team = team,
                           .n = n,
                           .me = me,
                           .data = data,
                           .count = count,
                           .type = type,
                           .op = op};
}

/* ---- rings: one round ---- */

static void nothing(struct net_op *o) {}

static void ring(struct net_op *o, unsigned pieces)
{
    struct flow *f = &o->flow;
    f->to = o->team[(o->me + 1) % o->n];
    f->from = o->team[(o->me + o->n - 1) % o->n];
    f->nout = f->nin = pieces;
    char *p;
    size_t first;
    o->piece(o, true, 0, &p, &first);
    f->credit = first;
}

/* Slice `i` of the vector, i counted around the ring. */
static void slice_piece(const struct net_op *o, int i, char **p, size_t *bytes)
{
    size_t size = type_size(o->type), n = (size_t)o->n;
    size_t at = (size_t)((i + 2 * o->n) % o->n), each = o->count / n, more = o->count % n;
    size_t from = at * each + (at < more ? at : more);
    *p = o->data + from * size;
    *bytes = (each + (at < more)) * size;
}

static void reduce_ring_piece(const struct net_op *o, bool out, unsigned k, char **p,
                              size_t *bytes)
{
    slice_piece(o, o->me - (int)k - !out, p, bytes);
}

static bool reduce_ring_begin(struct net_op *o)
{
    if (o->round > 0)
        return false;
    ring(o, 2 * ((unsigned)o->n - 1));
    o->flow.nreduce = (unsigned)o->n - 1;
    return true;
}

static const struct net_algorithm reduce_ring = {reduce_ring_begin, nothing};

static void list_piece(const struct net_op *o, bool out, unsigned k, char **p,
                       size_t *bytes)
{
    const struct iovec *piece = &o->list[k + (out ? 0 : o->nfirst)];
    *p = piece->iov_base;
    *bytes = piece->iov_len;
}

static bool list_begin(struct net_op *o)
{
    struct flow *f = &o->flow;
    if (o->round > 0)
        return false;
    f->to = o->team[(o->me + 1) % o->n];
    f->from = o->team[(o->me + o->n - 1) % o->n];
    f->nout = o->nlist - o->nlast;
    f->nin = o->nlist - o->nfirst;
    f->nreduce = o->scratch ? f->nin : 0;
    f->credit = 0;
    for (unsigned i = 0; i < o->nfirst; i++)
        f->credit += o->list[i].iov_len;
    return true;
}

static const struct net_algorithm list_ring = {list_begin, nothing};

/* ---- recursive doubling ----
 * With n not a power of two, n - p members first hand their vector to their left
 * neighbour and get the result at the end. */

static void whole_piece(const struct net_op *o, bool out, unsigned k, char **p,
                        size_t *bytes)
{
    *bytes = o->count * type_size(o->type);
    *p = out || !o->scratch ? o->data : o->scratch;
}

static void exchange(struct net_op *o, int to, int from)
{
    struct flow *f = &o->flow;
    if (to >= 0) {
        f->to = o->team[to];
        f->nout = 1;
    }
    if (from >= 0) {
        f->from = o->team[from];
        f->nin = 1;
    }
}

struct doubling {
    int p, extra;   /* largest power of two in n, and what is left */
    int place;      /* among the p, -1: handed over */
    unsigned steps; /* log2 p */
};

static struct doubling doubling_of(const struct net_op *o)
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

static bool doubling_begin(struct net_op *o)
{
    struct doubling d = doubling_of(o);
    if (o->round > d.steps + 1)
        return false;
    if (o->round == 0) {
        if (o->me < 2 * d.extra)
            exchange(o, d.place < 0 ? o->me - 1 : -1, d.place < 0 ? -1 : o->me + 1);
    } else if (o->round <= d.steps) {
        if (d.place >= 0) {
            int other = doubling_member(&d, d.place ^ 1 << (o->round - 1));
            exchange(o, other, other);
        }
    } else if (o->me < 2 * d.extra) {
        exchange(o, d.place < 0 ? -1 : o->me + 1, d.place < 0 ? o->me - 1 : -1);
    }
    return true;
}

static void doubling_end(struct net_op *o)
{
    struct doubling d = doubling_of(o);
    if (o->flow.from < 0)
        return;
    const char *left = o->data, *right = o->scratch;
    if (o->round > d.steps) {
        if (o->count > 0)
            memcpy(o->data, o->scratch, o->count * type_size(o->type));
        return;
    }
    if (o->round > 0 && d.place & 1 << (o->round - 1)) {
        left = o->scratch;
        right = o->data;
    }
    reduce_two(o->data, left, right, o->count, o->type, o->op);
}

static const struct net_algorithm doubling = {doubling_begin, doubling_end};

/* ---- broadcast: a binomial tree when short, a chain of relays when long ---- */

static bool tree_begin(struct net_op *o)
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

static const struct net_algorithm tree = {tree_begin, nothing};

static bool chain_begin(struct net_op *o)
{
    int at = (o->me - o->root + o->n) % o->n;
    if (o->round > 0)
        return false;
    exchange(o, at + 1 < o->n ? (o->me + 1) % o->n : -1,
             at > 0 ? (o->me + o->n - 1) % o->n : -1);
    o->flow.credit = at == 0 ? no_limit : 0;
    return true;
}

static const struct net_algorithm chain = {chain_begin, nothing};

/* ---- reduce: the same chain the other way, added to at every stop ---- */

static bool fold_begin(struct net_op *o)
{
    int at = (o->me - o->root - 1 + 2 * o->n) % o->n;
    if (o->round > 0)
        return false;
    exchange(o, at + 1 < o->n ? (o->me + 1) % o->n : -1,
             at > 0 ? (o->me + o->n - 1) % o->n : -1);
    o->flow.credit = at == 0 ? no_limit : 0;
    o->flow.nreduce = 1;
    return true;
}

static void in_place(const struct net_op *o, bool out, unsigned k, char **p,
                     size_t *bytes)
{
    *bytes = o->count * type_size(o->type);
    *p = o->data;
}

static const struct net_algorithm fold_chain = {fold_begin, nothing};

/* ---- starting ---- */

void net_all_reduce(struct net_op *o, struct head head, const int *team, int n, int me,
                    void *data, size_t count, enum ddp_type type, enum ddp_op op)
{
    size_t bytes = count * type_size(type);
    *o = op_make(head, team, n, me, data, count, type, op);
    bool is_long = bytes > RING_BYTES && n > 1;
    o->algorithm = is_long ? &reduce_ring : &doubling;
    o->piece = is_long ? reduce_ring_piece : whole_piece;
    o->scratch = xcalloc(1, is_long ? TURN_BYTES : bytes);
}

void net_broadcast(struct net_op *o, struct head head, const int *team, int n, int me,
                   int root, void *data, size_t bytes)
{
    *o = op_make(head, team, n, me, data, bytes, DDP_U8, DDP_SUM);
    o->root = root;
    o->algorithm = bytes > RING_BYTES ? &chain : &tree;
    o->piece = whole_piece;
}

void net_reduce(struct net_op *o, struct head head, const int *team, int n, int me,
                int root, void *data, size_t count, enum ddp_type type, enum ddp_op op)
{
    net_all_reduce(o, head, team, n, me, data, count, type, op);
    if (o->algorithm != &reduce_ring)
        return;
    o->root = root;
    o->algorithm = &fold_chain;
    o->piece = in_place;
}

void net_ring(struct net_op *o, struct head head, const int *team, int n, int me,
              struct net_pieces pieces, bool reduces, enum ddp_type type, enum ddp_op op)
{
    *o = op_make(head, team, n, me, NULL, 0, type, op);
    o->algorithm = &list_ring;
    o->piece = list_piece;
    o->list = pieces.list;
    o->nlist = pieces.n;
    o->nfirst = pieces.nfirst;
    o->nlast = pieces.nlast;
    o->scratch = reduces ? xcalloc(1, TURN_BYTES) : NULL;
}
