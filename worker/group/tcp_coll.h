/* worker/group/tcp_coll.h - collectives over byte streams, among a team of ranks
 *
 * A team is an ordered list of two or more ranks; every member starts the same operations
 * in the same order. The order of a reduction, which include/ddprun/group.h promises,
 * depends on the team and the size alone.
 */
#ifndef WORKER_GROUP_TCP_COLL_H
#define WORKER_GROUP_TCP_COLL_H

#include "worker/group/tcp.h"

/* Up to RING_BYTES recursive doubling or a tree, above it a ring or a chain. A team of
 * two changes at PAIR_BYTES; the sums are the same. */
enum { RING_BYTES = 32768, PAIR_BYTES = 131072 };

/* A message: the sender's call, which the receiver compares with its own, then a list of
 * pieces. */
struct message {
    int peer;          /* the rank that it goes to or comes from; -1: none */
    unsigned n, piece; /* pieces in all, and the current one */
    size_t at, head;   /* bytes done: of that piece, and of the call */
};

/* One message out and one in. What may be sent can depend on what has been received:
 * `sent` never exceeds `credit` + `got`. */
struct flow {
    struct message out, in;
    struct call came;
    uint64_t sent, got, credit;
    int64_t began_ns; /* when `came` was complete */
    unsigned nreduce; /* the first pieces that come in are reduced, the others stored */
    size_t have;      /* bytes in `room`: part of an element */
    bool swaps;     /* received data are reduced into the piece that is being sent, behind
                       what has been sent */
    bool mine_left; /* left operand is ours; else the received data are */
};

/* An operation: its description, and how far it has come. */
struct tcp_op {
    struct call call;
    struct tcp_streams *streams; /* borrowed */
    const int *team;             /* borrowed */
    int n, me;                   /* its size, my place */
    int root;                    /* place in the team */
    enum ddp_type type;
    enum ddp_op op;    /* DDP_AVG is summed; the caller divides */
    struct iovec data; /* borrowed until the end */
    /* Instead of `data`: a ring's pieces, in the order in which this member forwards
     * them: all but the last `nlast` are sent, all but the first `nfirst` received, and
     * of those the first `nreduce` are reduced into what is there, the others stored. */
    struct iovec *list; /* owned */
    unsigned nlist, nfirst, nlast, nreduce;

    /* sets up the next round; false: the operation is complete */
    bool (*begin)(struct tcp_op *o);
    unsigned round;
    bool under_way;
    struct flow flow;
    char *room; /* borrowed: of struct tcp */
};

/* Start what `o` describes. */
void tcp_all_reduce(struct tcp_op *o);
void tcp_broadcast(struct tcp_op *o);
/* Reduce to the root; a chain when long. Data of the other members are overwritten. */
void tcp_reduce(struct tcp_op *o);
/* Pass the pieces of o->list around. */
void tcp_ring(struct tcp_op *o);

/* ADVANCE_*. On error `*culprit` is the rank that has gone, or -1 (ranks disagree). */
int tcp_op_advance(struct tcp *tcp, struct tcp_op *o, int *culprit, struct ddp_err *err);
void tcp_op_finish(struct tcp_op *o); /* also when it was never started */

#endif
