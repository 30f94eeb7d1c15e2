/* worker/ddp/bucket.h - which gradients travel together, and in which order
 *
 * Backward makes gradients from the last layer to the first. Buckets are ranges of the
 * gradient block in that order: the first to be full is the first to be reduced, while
 * backward goes on. All ranks must have the same plan.
 */
#ifndef WORKER_DDP_BUCKET_H
#define WORKER_DDP_BUCKET_H

#include "include/ddprun/group.h"
#include "worker/nn/model.h"

#include <stddef.h>

struct bucket {
    size_t offset, count; /* floats, in the gradient block */
};

/* By size: from the shapes alone. `out` has room for n, the number of parameters. A
 * bucket is full with `first` floats (the first one) or `cap` floats (all others), and
 * where linear layers end and convolutions begin: going back through a convolution takes
 * long and yields few bytes, so what is ready by then should be on its way and not wait
 * for a bucket to fill. (By bytes alone, a small model is one bucket, and nothing
 * overlaps.) Returns how many buckets there are; they cover the block from its end to its
 * beginning. */
size_t bucket_plan(const struct param *params, size_t n, size_t first, size_t cap,
                   struct bucket *out);

/* How many of plan[0..n) can be started when backward has come down to gradient `offset`;
 * `started` have been. They go in the plan's order on every rank, never by readiness:
 * collectives must come in one order. */
size_t bucket_final(const struct bucket *plan, size_t n, size_t started, size_t offset);
/* The part of a bucket that is rank's, of `size`: so many units of `unit` floats as the
 * others have, or one more; the last rank also has what makes no unit. */
struct bucket bucket_part(struct bucket b, size_t unit, int rank, int size);

/* By time. pieces[0..n) cover the block from its end to its beginning, pieces[i] is ready
 * ready[i] seconds after backward began (ascending), and a reduction takes `latency`
 * seconds and `per_float` for each float, one after the other. Of all ways to join
 * neighbours this is the one that is over first, or one with fewer buckets that is over
 * nearly as soon: within a hundredth. `out` has room for n. */
size_t bucket_plan_timed(const struct bucket *pieces, const double *ready, size_t n,
                         double latency, double per_float, struct bucket *out);

/* The same on all ranks, by the mean of the times that they saw: those of the pieces in
 * times[0..n), in times[n] the seconds of a reduction of nearly nothing, in times[n + 1]
 * of all. *nout: how many buckets there are. */
int bucket_plan_agreed(struct ddp_group *group, const struct bucket *pieces,
                       double *times, size_t n, struct bucket *out, size_t *nout,
                       struct ddp_err *err);

/* A plan as "OFFSET,OFFSET,...", and one from such a text for a block of `count` floats,
 * of at most `most` buckets: how many there are, 0 when the text is of another block. */
void bucket_plan_write(const struct bucket *plan, size_t n, char *text, size_t size);
size_t bucket_plan_read(const char *text, size_t count, size_t most, struct bucket *out);

#endif
