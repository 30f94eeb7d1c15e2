/* worker/ddp/replica.h - ranks with one model: the same start, one outcome of each
 * call, the same bits
 */
#ifndef WORKER_DDP_REPLICA_H
#define WORKER_DDP_REPLICA_H

#include "include/ddprun/group.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <stdint.h>

/* The state that all ranks share, and that checkpoints contain: borrowed. */
struct replica {
    const char *model;                   /* its name */
    uint64_t model_checksum;             /* of its text; 0: unknown */
    const struct param *params, *fields; /* layout of weights, and of buffers */
    size_t nparams, nfields;
    float *weights, *buffers;
    size_t floats, nbuffers; /* in these blocks */
    struct optim *optim;
};

struct replica replica_of(struct model *model, struct optim *optim);

struct train_state {
    uint64_t step;      /* optimiser steps taken */
    uint64_t seed;      /* of the run */
    int64_t epoch;      /* the current one, from 1; 0: the program counts none */
    uint64_t position;  /* samples of it that were assigned, over all ranks */
    int64_t ranks;      /* that wrote a checkpoint; 0: unknown */
    char buckets[1024]; /* the plan of buckets for `ranks` ranks; "": not final */
};

/* Agrees on one outcome. `rc` and `err` are this rank's. Returns 0 if all succeeded.
 * Else -1 on every rank, with the error of the lowest rank that failed, and `*culprit`
 * (may be NULL) is that rank; -1 if none failed, but the group did. */
int replica_agree(struct ddp_group *group, int rc, int *culprit, struct ddp_err *err);

/* The same after what may take long on some ranks, such as reading from a slow file
 * system: waits for them for REPLICA_PATIENCE timeouts of the group, unless one dies.
 * While it waits, each rank calls on_late(arg, seconds waited) after 5 s, then every
 * minute. on_late may be NULL. */
enum { REPLICA_PATIENCE = 12 };
int replica_agree_late(struct ddp_group *group, int rc,
                       void (*on_late)(void *arg, int seconds), void *arg, int *culprit,
                       struct ddp_err *err);

/* Compares n numbers of each rank: `*i` is the first that differs from rank 0's on the
 * lowest rank that has such a one, `*other`; 0: all are alike. */
int replica_compare(struct ddp_group *group, const uint64_t *mine, size_t n, int *other,
                    size_t *i, struct ddp_err *err);

/* Copies rank 0's weights, buffers and optimiser (whole states, and counts) to all. */
int replica_broadcast(struct ddp_group *group, const struct replica *r,
                      struct ddp_err *err);

/* Averages the buffers (running means and variances) over the ranks, before they are
 * used or written. */
int replica_average(struct ddp_group *group, struct model *model, struct ddp_err *err);

/* Have all ranks the same bits? Compares a checksum of each parameter; the error names
 * the first parameter and rank that differ from rank 0. `*sum` is the checksum of all. */
int replica_check(struct ddp_group *group, const struct replica *r, uint64_t *sum,
                  struct ddp_err *err);

#endif
