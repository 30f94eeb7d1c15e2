/* worker/group/hier.h - collectives in steps, within a host and between hosts
 *
 * First within each host, then between hosts, then within again, chunk by chunk. As
 * many ranks of each host as the smallest host has ("channels") talk to their
 * counterparts on the other hosts, each for its own slice, so that several connections
 * share the load.
 *
 * With one rank per host there is no "within", with one host no "between": then all its
 * ranks are channels, which have no counterparts.
 */
#ifndef WORKER_GROUP_HIER_H
#define WORKER_GROUP_HIER_H

#include "worker/group/coll.h"

struct hier {
    const struct layout *layout; /* borrowed from the group, as are tcp and shm */
    struct tcp *tcp;             /* NULL: all ranks are on this host */
    struct shm *shm;             /* NULL: alone on this host */
    int host, local;             /* mine */
    int nchannels;
    int most_local; /* ranks of the largest host */
    int *team;      /* owned: this rank's counterparts on all hosts; NULL: this rank is no
                       channel */
    int *leaders;   /* owned: one rank of every host, for broadcasts and barriers */
    struct tcp_op op;           /* the current operation between hosts, */
    struct tcp_streams streams; /* and how many its messages are divided over */
};

struct hier *hier_create(const struct layout *layout, struct tcp *tcp, struct shm *shm,
                         struct ddp_err *err);
void hier_destroy(struct hier *h); /* NULL is fine */

/* ADVANCE_*; on error `*culprit` is the rank that has gone, or -1. */
int hier_advance(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err);

/* ---- inside hier.c, hier_blocks.c and shm_coll.c ---- */

/* Ranks without counterparts: of one host, or of a host larger than the smallest. */
static inline bool hier_is_channel(const struct hier *h)
{
    return h->local < h->nchannels;
}

/* Does this rank work on a chunk in step t? */
static inline bool hier_works(const struct hier *h, const struct coll *c, unsigned t)
{
    return hier_is_channel(h) && t >= c->lead && t - c->lead < c->nchunks;
}

/* An operation of `c` among one rank of each host, whose place is its host; without its
 * data. */
struct tcp_op hier_op(struct hier *h, const struct coll *c, const int *team);

/* all_gather; reduce_scatter over several hosts, and within one. */
extern const struct coll_step hier_blocks_gather, hier_blocks_scatter,
    hier_blocks_scatter_here;
size_t hier_blocks_chunk(const struct hier *h, const struct coll *c);
size_t hier_blocks_scratch(const struct hier *h, const struct coll *c); /* elements */

/* Within one host, when all have announced the call: finish it if its data came with
 * that, or it has none. */
bool shm_coll_finish_short(struct shm *s, struct coll *c);
/* all_reduce of buffers in the arena. */
extern const struct coll_step shm_coll_arena;
size_t shm_coll_chunk(const struct shm *s, const struct coll *c);
/* Reduce n elements at s->in to s->out[0] and the others. */
void shm_coll_reduce(struct shm *s, struct autotune *which, const struct coll *c,
                     int nout, size_t n);

#endif
