/* worker/ddp/bucket.h - buckets: ranges of gradients that are reduced together
 *
 * Backward produces gradients from the last layer to the first. Buckets are ranges of
 * the gradient block in that order: the first to be complete is the first to be
 * reduced, while backward continues. All ranks must have the same plan.
 */
#ifndef WORKER_DDP_BUCKET_H
#define WORKER_DDP_BUCKET_H

#include "include/ddprun/group.h"
#include "worker/nn/model.h"

#include <stddef.h>

struct bucket {
    size_t offset, count; /* floats, in the gradient block */
};

/* The usual sizes, of the first bucket and of the others. */
enum { BUCKET_FIRST_BYTES = 1 << 20, BUCKET_BYTES = 25 << 20 };

/* Plans buckets by size, from the shapes alone. `out` has space for n, the number of
 * parameters. A bucket is full with `cap` floats (the first one with `first`, if that
 * is less), and where linear layers end and convolutions begin: backward through a
 * convolution takes long and yields few bytes, so what is ready by then should be sent
 * and not wait for a bucket to fill. (By bytes alone, a small model is one bucket, and
 * nothing overlaps.) Returns the number of buckets; they cover the block from its end
 * to its beginning. `cap` SIZE_MAX: one bucket. */
size_t bucket_plan(const struct param *params, size_t n, size_t first, size_t cap,
                   struct bucket *out);

/* How many of plan[0..n) may be started when backward has reached gradient `offset`,
 * beyond the `started` ones. Buckets are started in the plan's order on every rank,
 * never by readiness, since collectives need one order. */
size_t bucket_final(const struct bucket *plan, size_t n, size_t started, size_t offset);
/* The part of a bucket that belongs to `rank` of `size`: as many units of `unit`
 * floats as the others have, or one more; the last rank also gets the remainder. */
struct bucket bucket_part(struct bucket b, size_t unit, int rank, int size);

/* Plans buckets by time. pieces[0..n) cover the block from its end to its beginning,
 * pieces[i] is ready ready[i] seconds after backward began (ascending), and a
 * reduction takes `latency` seconds plus `per_float` for each float, one after the
 * other. Of all ways to join neighbours, the plan has the fewest buckets of those that
 * end at most a hundredth later than the first. `out` has space for n. */
size_t bucket_plan_timed(const struct bucket *pieces, const double *ready, size_t n,
                         double latency, double per_float, struct bucket *out);

/* The same plan on all ranks, by the mean of their measured times: times[0..n) of the
 * pieces, times[n] the seconds of a minimal reduction, times[n + 1] of a reduction of
 * everything. *nout: the number of buckets. */
int bucket_plan_agreed(struct ddp_group *group, const struct bucket *pieces,
                       double *times, size_t n, struct bucket *out, size_t *nout,
                       struct ddp_err *err);

/* A plan as "OFFSET,OFFSET,...", and a plan from such a text for a block of `count`
 * floats, of at most `most` buckets; returns their number, 0 if the text is of another
 * block. */
void bucket_plan_write(const struct bucket *plan, size_t n, char *text, size_t size);
size_t bucket_plan_read(const char *text, size_t count, size_t most, struct bucket *out);

#endif
