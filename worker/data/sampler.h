/* worker/data/sampler.h - who sees which sample in which epoch
 *
 * Each epoch has an order of all n training samples, shuffled from (seed, epoch). It is
 * walked in steps of size * batch samples; of those, rank r takes the r-th, the
 * (r+size)-th and so on, as PyTorch's DistributedSampler deals them. So 1 rank with
 * batches of 64 and 2 ranks with batches of 32 learn from the same samples at each step.
 *
 * There is no padding: no sample is left out and none is seen twice in an epoch. What
 * remains at the end is dealt in the same way, so ranks differ by at most one sample in
 * the last step, and a rank may get none. Gradients are weighted by the samples they come
 * from, so the last step counts as it should.
 */
#ifndef WORKER_DATA_SAMPLER_H
#define WORKER_DATA_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

struct sampler {
    uint32_t n;       /* samples */
    int rank, size;   /* of whom the samples are dealt to */
    int batch;        /* samples a rank takes at a step */
    uint64_t seed;    /* 0..: of the order */
    size_t position;  /* samples of this epoch that have been dealt, over all ranks */
    uint32_t *order;  /* owned, [n] */
    uint32_t *picked; /* owned, [batch] */
};

void sampler_init(struct sampler *s, uint32_t n, int rank, int size, int batch,
                  uint64_t seed);
void sampler_finish(struct sampler *s);

/* Shuffle for `epoch` and go to `position`: 0, or where a checkpoint was written. */
void sampler_start(struct sampler *s, int epoch, size_t position);

/* The next step: s->picked[0..*mine) are this rank's samples. Returns how many samples
 * the step has over all ranks; 0: the epoch has ended. */
int sampler_next(struct sampler *s, int *mine);

/* Of an epoch's first step, and of the last one, which may be like it or the same: the
 * samples of this rank, and of all. */
void sampler_shares(const struct sampler *s, int mine[2], int all[2]);

/* Rank's contiguous share of n test samples: [first, first + returned). The shares of all
 * ranks are the n samples, each once. */
uint32_t sampler_share(uint32_t n, int rank, int size, uint32_t *first);

#endif
