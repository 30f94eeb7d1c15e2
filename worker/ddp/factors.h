/* worker/ddp/factors.h - gradients of linear layers that are made where they are wanted
 *
 * The gradient of a linear layer's weight is the product of two matrices that have a row
 * for each sample: g (of outputs) and x (inputs). 64 samples of a layer of 512 x 784 have
 * 83 thousand numbers in both, the gradient 401 thousand. So where ranks share memory
 * they give each other these factors, as soon as backward has them, and each makes its
 * own rows of the sum over all ranks' products, in the order in which it would have added
 * their gradients: the same bits, the same number of multiplications, but a fifth of the
 * bytes, and no gradient that is written by one CPU and summed by another. (The idea is
 * that of "sufficient factor broadcasting": Xie et al., UAI 2016.)
 *
 * Factors lie in the arena, a place for each rank; their maker writes them to all, so
 * that each is read where another rank wrote it, and never taken back.
 */
#ifndef WORKER_DDP_FACTORS_H
#define WORKER_DDP_FACTORS_H

#include "include/ddprun/group.h"
#include "worker/nn/model.h"

#include <stddef.h>

struct factors;

/* Of the layers of `model` whose gradients are larger than all ranks' factors; from now
 * on backward leaves these. *out NULL without an error: there are none, or the ranks have
 * different kernels, who would not understand each other. Every rank, with ranks that all
 * share memory. Group and model are borrowed. */
int factors_create(struct ddp_group *group, struct model *model, struct factors **out,
                   struct ddp_err *err);
void factors_destroy(struct factors *f); /* NULL is fine */

/* Are gradients [offset, ...) made here? Then the floats of one row, else 0. */
size_t factors_row(const struct factors *f, size_t offset);

/* Give the others the factors of the layer at `offset`, if it has some, after it has gone
 * back, and before a collective, after which they are all there; and those of a rank that
 * has no samples. They must stay until all ranks have made their rows. */
void factors_give(struct factors *f, size_t offset);
void factors_idle(struct factors *f);

/* Rows [at, at + n) of the gradient block, whole rows of one layer, summed over the ranks
 * from this one on. By any thread. */
void factors_sum(const struct factors *f, size_t at, size_t n, float *rows);

#endif
