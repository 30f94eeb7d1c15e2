/* worker/group/hier.h - hierarchical collectives of groups that span hosts
 *
 * First within each host, then between hosts, then within again, chunk by chunk. As
 * many ranks of each host as the smallest host has ("channels") talk to their
 * counterparts on the other hosts, each for its own slice, so that several connections
 * share the load.
 *
 * With one rank per host there is no "within". The order of a reduction is: the ranks
 * of a host in rank order, then the hosts as in tcp_coll.h.
 */
#ifndef WORKER_GROUP_HIER_H
#define WORKER_GROUP_HIER_H

#include "worker/group/coll.h"

struct hier {
    const struct layout *layout; /* borrowed from the group, as are tcp and shm */
    struct tcp *tcp;
    struct shm *shm; /* NULL: alone on this host */
    int host, local; /* mine */
    int nchannels;
    int most_local; /* ranks of the largest host */
    bool flat;      /* one rank on every host */
    int *team;      /* owned: this rank's counterparts on all hosts; NULL: this rank is no
                       channel */
    int *speakers;  /* owned: one rank of every host, for broadcasts and barriers */
    struct tcp_op op; /* the current operation between hosts */
};

struct hier *hier_create(const struct layout *layout, struct tcp *tcp, struct shm *shm);
void hier_destroy(struct hier *h); /* NULL is fine */

/* ADVANCE_*; on error `*culprit` is the rank that has gone, or -1. */
int hier_advance(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err);

/* ---- inside hier.c and hier_blocks.c ---- */

static inline struct head hier_head(const struct hier *h, const struct coll *c)
{
    return (struct head){.what = coll_what(c),
                         .bytes = coll_agreed(c, h->layout->size),
                         .number = c->number};
}

/* Number of ranks on this host. */
static inline int hier_nlocal(const struct hier *h)
{
    return h->shm ? h->shm->n : 1;
}

/* all_gather and reduce_scatter: the chunks, and the two halves of a step, between which
 * an operation on the network may be under way. */
int hier_blocks_plan(const struct hier *h, struct coll *c, struct ddp_err *err);
void hier_blocks_begin(struct hier *h, struct coll *c, unsigned t);
void hier_blocks_end(struct hier *h, struct coll *c, unsigned t);

#endif
