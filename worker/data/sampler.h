/* worker/data/sampler.h - which rank uses which sample in which epoch
 *
 * Each epoch has a permutation of all n training samples, from (seed, epoch). A step
 * takes size * batch samples of it; of those, rank r takes the r-th, the (r+size)-th
 * and so on, like PyTorch's DistributedSampler. So 1 rank with batches of 64 and 2
 * ranks with batches of 32 use the same samples in each step.
 *
 * There is no padding: each sample is used exactly once per epoch. In the last step
 * ranks differ by at most one sample, and a rank may have none. Gradients are weighted
 * by the number of samples, so the last step is weighted correctly.
 */
#ifndef WORKER_DATA_SAMPLER_H
#define WORKER_DATA_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

struct sampler {
    uint32_t n;       /* samples */
    int rank, size;   /* of the group of ranks */
    int batch;        /* samples of a rank per step */
    uint64_t seed;    /* of the permutation */
    size_t position;  /* samples of this epoch assigned so far, over all ranks */
    uint32_t *order;  /* owned, [n] */
    uint32_t *picked; /* owned, [batch] */
};

void sampler_init(struct sampler *s, uint32_t n, int rank, int size, int batch,
                  uint64_t seed);
void sampler_finish(struct sampler *s);

/* Shuffles for `epoch` and continues at `position`: 0, or a checkpoint's. */
void sampler_start(struct sampler *s, int epoch, size_t position);

/* Takes the next step: s->picked[0..*mine) are this rank's samples. Returns the number
 * of samples over all ranks; 0: the epoch has ended. */
int sampler_next(struct sampler *s, int *mine);

/* The number of samples in an epoch's first and last step, of this rank and of all. */
void sampler_shares(const struct sampler *s, int mine[2], int all[2]);

/* The rank's contiguous range of n test samples: [first, first + returned). The ranges
 * of all ranks partition the n samples. */
uint32_t sampler_share(uint32_t n, int rank, int size, uint32_t *first);

#endif
