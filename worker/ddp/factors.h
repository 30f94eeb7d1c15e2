/* worker/ddp/factors.h - exchange of the factors of linear layers' gradients
 *
 * The gradient of a linear layer's weight is the product of two matrices with a row
 * for each sample: g (of outputs) and x (inputs). For 64 samples and a layer of 512 x
 * 784 these have 83 thousand numbers, the gradient 401 thousand. So ranks that share
 * memory exchange these factors as soon as backward has them, and each computes its
 * own rows of the sum over all ranks' products, in the order in which it would have
 * added their gradients: the same bits with the same number of multiplications, but a
 * fifth of the bytes, and no gradient that one CPU writes and another reads. (The idea
 * is "sufficient factor broadcasting": Xie et al., UAI 2016.)
 *
 * Factors are stored in the arena, with a place for each rank. A rank writes its
 * factors into the arenas of all others, so that each location is written by one rank
 * and read by another, always in the same direction.
 */
#ifndef WORKER_DDP_FACTORS_H
#define WORKER_DDP_FACTORS_H

#include "include/ddprun/group.h"
#include "worker/nn/model.h"

#include <stddef.h>

struct factors;

/* For the layers of `model` whose gradients are larger than all ranks' factors; from
 * now on backward stores factors for these. *out NULL without an error: there are
 * none, or the ranks' kernels differ, and with them the factors' layout. Every rank
 * calls it; all must share memory. Group and model are borrowed. */
int factors_create(struct ddp_group *group, struct model *model, struct factors **out,
                   struct ddp_err *err);
void factors_destroy(struct factors *f); /* NULL is allowed */

/* If gradients [offset, ...) are computed from factors: the floats of one row, else 0. */
size_t factors_row(const struct factors *f, size_t offset);

/* Copies the factors of the layer at `offset`, if it has any, to the others.
 * factors_give() is called after the layer's backward, factors_idle() in its place on a
 * rank without samples, for all layers; both before a collective, after which all factors
 * have arrived. They must stay unchanged until all ranks have computed their rows. */
void factors_give(struct factors *f, size_t offset);
void factors_idle(struct factors *f);

/* Computes rows [at, at + n) of the gradient block, whole rows of one layer, summed
 * over the ranks, beginning with this one. May be called by any thread. */
void factors_sum(const struct factors *f, size_t at, size_t n, float *rows);

#endif
