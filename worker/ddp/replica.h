/* worker/ddp/replica.h - many ranks, one model: start alike, fail together, stay alike
 */
#ifndef WORKER_DDP_REPLICA_H
#define WORKER_DDP_REPLICA_H

#include "include/ddprun/group.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <stdint.h>

/* The state that all ranks have alike, and that checkpoints are made of: borrowed. */
struct replica {
    const char *model;                   /* its name */
    const struct param *params, *fields; /* what lies in weights, and in buffers */
    size_t nparams, nfields;
    float *weights, *buffers;
    size_t floats, nbuffers; /* in these blocks */
    struct optim *optim;
};

struct replica replica_of(struct model *model, struct optim *optim);

/* A longer choice is not kept: a run that goes on makes its own. */
enum { TRAIN_ALGORITHMS = 65536 };

/* The progress of a run. */
struct train_state {
    uint64_t step;      /* optimiser steps taken */
    uint64_t seed;      /* of the run */
    int64_t epoch;      /* the one under way, from 1; 0: the program counts none */
    uint64_t position;  /* samples of it that have been dealt, over all ranks */
    int64_t ranks;      /* who wrote a checkpoint; 0: it is not known */
    char buckets[1024]; /* in which so many ranks add their gradients; "": not settled */
    char algorithms[TRAIN_ALGORITHMS]; /* that a GPU's engine has chosen; "": the usual */
};

/* Agree on the outcome of all ranks. `rc` and `err` are this rank's outcome.
 * Returns 0 when all succeeded. Else -1 on every rank, with the error of the lowest rank
 * that failed, and `*culprit` (may be NULL) is that rank; -1 when none did, or when the
 * group itself failed. */
int replica_agree(struct ddp_group *group, int rc, int *culprit, struct ddp_err *err);

/* Rank 0's weights, buffers and optimiser (whole states, and counts) are copied to all.
 */
int replica_broadcast(struct ddp_group *group, const struct replica *r,
                      struct ddp_err *err);

/* The buffers of each rank (means and variances of what it saw) become the mean of all
 * ranks': before they are used, or written. */
int replica_average(struct ddp_group *group, struct model *model, struct ddp_err *err);

/* Do all ranks have the same bits? Compares a checksum of each parameter; the error names
 * the first parameter and rank that differ from rank 0. `*sum` is that of the whole. */
int replica_check(struct ddp_group *group, const struct replica *r, uint64_t *sum,
                  struct ddp_err *err);

#endif
