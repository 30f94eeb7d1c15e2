/* worker/ddp/reducer_impl.h - internals of reducer.c, reducer_step.c and factors.c
 *
 * The block in the arena: a head with the step's sums, which keeps the gradients aligned,
 * then the gradients.
 */
#ifndef WORKER_DDP_REDUCER_IMPL_H
#define WORKER_DDP_REDUCER_IMPL_H

#include "worker/ddp/reducer.h"

struct reduction {
    struct ddp_request *request; /* owned until it has ended */
    int64_t began_ns;
};

/* A linear layer of which factors are exchanged. */
struct factored {
    struct model_op *layer; /* borrowed */
    size_t floats;          /* of a batch's factors */
    float **places; /* owned, [size]: in my arena, of the ranks from this one on */
};

struct reducer {
    struct ddp_group *group; /* borrowed */
    int rank, size;
    struct reducer_settings settings;
    float *block; /* in the arena: head and gradients */
    float *grads; /* block + HEAD */
    size_t count; /* gradients */
    /* owned, [size - 1]: blocks of the ranks from the next on; NULL: not direct */
    float **others;
    struct factored *factored; /* owned: layers that have factors */
    int nfactored;
    float *rooms; /* owned: scratch memory for sums, one per thread, */
    size_t room;  /* of so many floats */
    bool summed;  /* this step's pieces have been summed */

    size_t most;               /* most buckets: as many as parameters */
    struct bucket *buckets;    /* owned, [most] */
    struct rank_piece *pieces; /* owned, [most + 1]: of each bucket; the last one's start
                                  is the end of all */
    struct reduction *reductions; /* owned, [most]: of each bucket */
    size_t *counts;               /* owned, [size]: sizes of the parts of a bucket */
    size_t nbuckets, npieces;
    size_t started, ended; /* numbers of buckets, in the plan's order */

    struct bucket *layers; /* owned: what becomes ready together, from the last */
    double *ready; /* owned, [nlayers + 2]: seconds since the step began, and times of two
                      reductions */
    size_t nlayers, seen;
    int watched; /* measured steps; WATCH_STEPS: done */
    int64_t begin_ns;

    struct ddp_err err; /* the first failure of the step */
    bool failed;
};

/* The sizes of all ranks' parts of a bucket, in r->counts. */
void reducer_count_parts(struct reducer *r, struct bucket b);
/* How many rows of the layer at `offset` are computed from factors at once; 0: it has
 * no factors. */
size_t reducer_rows_at(const struct reducer *r, size_t offset);
/* Traces a bucket that is complete now. Where ranks share memory, a wait: as bucket 0 for
 * the others' gradients, as bucket 1 for the weights they write. */
void reducer_span(const struct reducer *r, size_t bucket, size_t floats,
                  int64_t began_ns);

/* ---- factors.c ---- */

/* For the layers whose gradients are larger than all ranks' factors; from now on backward
 * stores factors for these. There are none if the ranks' kernels differ, and with them
 * the factors' layout. Every rank calls it; all must share memory. */
int factors_create(struct reducer *r, struct ddp_err *err);
void factors_destroy(struct reducer *r);

/* If gradients [offset, ...) are computed from factors: the floats of one row, else 0. */
size_t factors_row(const struct reducer *r, size_t offset);

/* Copies the factors of the layer at `offset`, if it has any, to the others.
 * factors_give() is called after the layer's backward, factors_idle() in its place on a
 * rank without samples, for all layers; both before a collective, after which all factors
 * have arrived. They must stay unchanged until all ranks have computed their rows. */
void factors_give(const struct reducer *r, size_t offset);
void factors_idle(const struct reducer *r);

/* Computes rows [at, at + n) of the gradient block, whole rows of one layer, summed
 * over the ranks, beginning with this one. May be called by any thread. */
void factors_sum(const struct reducer *r, size_t at, size_t n, float *rows);

#endif
