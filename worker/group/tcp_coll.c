/* worker/group/tcp_coll.c - see tcp_coll.h
 *
 * An operation is a sequence of rounds; in each a member sends one message and receives
 * one (tcp_flow.c). A ring is a single round: the message is the list of slices, and a
 * byte is forwarded as soon as it has been reduced, so that sending, receiving and
 * reducing overlap without a chunk size to tune.
 */
#include "worker/group/tcp_coll.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/coll.h"
#include "worker/group/reduce.h"

#include <stdlib.h>

static const uint64_t no_limit = UINT64_MAX / 2;

int tcp_op_advance(struct tcp *tcp, struct tcp_op *o, int *culprit, struct ddp_err *err)
{
    for (;;) {
        if (!o->under_way) {
            o->room = tcp_scratch(tcp);
            o->flow = (struct flow){.out.peer = -1, .in.peer = -1, .credit = no_limit};
            if (!o->begin(o))
                return ADVANCE_DONE;
            o->under_way = true;
        }
        int rc = tcp_flow_advance(tcp, o, culprit, err);
        if (rc != ADVANCE_DONE)
            return rc;
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
    if (o->n > 1 && o->data.iov_len > (o->n == 2 ? PAIR_BYTES : RING_BYTES))
        ring_of_slices(o);
}

void tcp_broadcast(struct tcp_op *o)
{
    o->begin = o->data.iov_len > RING_BYTES ? chain_begin : tree_begin;
}

void tcp_reduce(struct tcp_op *o)
{
    if (o->n == 1 || o->data.iov_len <= RING_BYTES) {
        tcp_all_reduce(o);
        return;
    }
    o->nreduce = 1;
    o->begin = chain_begin;
}
