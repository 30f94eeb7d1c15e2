/* worker/group/net_coll.h - collectives over byte streams, among a team of ranks
 *
 * A team is an ordered list of ranks; every member starts the same operations in the same
 * order. The order of a reduction depends on the team and the size alone:
 *   up to RING_BYTES  recursive doubling: neighbours in the team combine, then pairs of
 *                     pairs, ..., always the lower one's operand on the left
 *   above             a ring: slice i of n is folded from member i on around the ring
 * for a team of two up to PAIR_BYTES and above (which gives the same sums),
 * and for net_reduce() above RING_BYTES a chain, folded from the member behind the root
 * on.
 */
#ifndef WORKER_GROUP_NET_COLL_H
#define WORKER_GROUP_NET_COLL_H

#include "worker/group/net.h"

enum { RING_BYTES = 32768, PAIR_BYTES = 131072 };

/* What precedes the data of a message; both sides know what it must be. */
struct head {
    uint32_t magic, what;
    uint64_t bytes; /* of the collective, as the user calls it */
    uint64_t number;
};

/* One message out and one in at a time, each a row of pieces. What goes out may depend on
 * what has come in: of `sent` no more than `credit` + `got`. */
struct flow {
    int to, from; /* ranks, -1: none */
    unsigned nout, nin, kout, kin;
    size_t out_at, in_at; /* in the current piece */
    size_t head_out, head_in;
    struct head came;
    uint64_t sent, got, credit;
    unsigned nreduce; /* the first pieces that come in are reduced, the others stored */
    size_t have;      /* bytes in the room: an element not yet complete */
    bool swaps;       /* what comes in is reduced into what goes out, behind it */
    bool mine_left;   /* of an operation: else what has come is on the left */
};

struct net_op {
    /* the algorithm: sets up the next round; false: that was the last */
    bool (*begin)(struct net_op *o);
    struct head head;
    const int *team; /* borrowed */
    int n, me;       /* its size, my place */
    char *data;      /* borrowed */
    size_t count;    /* elements; of a block when there are several */
    enum ddp_type type;
    enum ddp_op op;
    int root; /* place in the team */
    unsigned round;
    bool under_way;
    struct flow flow;
    void (*piece)(const struct net_op *o, bool out, unsigned k, char **p, size_t *bytes);
    char *room;         /* borrowed: net_room() */
    struct iovec *list; /* owned: the pieces of net_ring() */
    unsigned nlist, nfirst, nlast;
    bool reduces; /* likewise */
};

/* `head` says what the user calls, to be compared. Buffers stay borrowed until the end;
 * DDP_AVG is summed and not divided. */
void net_all_reduce(struct net_op *o, struct head head, const int *team, int n, int me,
                    void *data, size_t count, enum ddp_type type, enum ddp_op op);
void net_broadcast(struct net_op *o, struct head head, const int *team, int n, int me,
                   int root, void *data, size_t bytes);
/* To the root alone: a chain that ends there when long. The others' data serve as room.
 */
void net_reduce(struct net_op *o, struct head head, const int *team, int n, int me,
                int root, void *data, size_t count, enum ddp_type type, enum ddp_op op);

/* Pieces that go around the ring, in the order in which I pass them on: all but the last
 * `nlast` are sent, all but the first `nfirst` received, the first with nobody before me.
 * Received pieces are reduced into what is there, or stored. */
struct net_pieces {
    struct iovec *list; /* malloc'ed; taken over */
    unsigned n, nfirst, nlast;
};
void net_ring(struct net_op *o, struct head head, const int *team, int n, int me,
              struct net_pieces pieces, bool reduces, enum ddp_type type, enum ddp_op op);

/* ADVANCE_*. On error `*culprit` is the rank that has gone, or -1 (ranks disagree). */
int net_op_advance(struct net *net, struct net_op *o, int *culprit, struct ddp_err *err);
/* The round that `begin` has set up; inside net_coll.c. */
int net_flow_advance(struct net *net, struct net_op *o, int *culprit,
                     struct ddp_err *err);
void net_op_finish(struct net_op *o); /* also when it was never started */

#endif
