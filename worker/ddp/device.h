/* worker/ddp/device.h - where the parameters of ddp.h are: in host memory
 * (device_host.c), or in that of a GPU (worker/cuda/parallel_cuda.c, in the engine's
 * object)
 *
 * A device has the block of weights, that of gradients, and does all that a step does to
 * them. The optimiser's states of a GPU are its own, too.
 *
 * On a GPU calls put work on a stream of the device's own, which waits for the caller's
 * before it reads a gradient; the caller's stream waits for the end of a step. The host
 * is at most one step ahead.
 *
 * Functions return 0, or -1 with `err`; then only close() may be called.
 */
#ifndef WORKER_DDP_DEVICE_H
#define WORKER_DDP_DEVICE_H

#include "include/ddprun/ddp.h"
#include "worker/ddp/reducer.h"

/* All is borrowed, until close(). */
struct device_job {
    struct ddp_group *group; /* of host memory */
    struct reducer *reducer;
    /* [n]: as the caller has passed them, NULLs included */
    const struct ddp_param *params;
    const struct param *blocks; /* [n]: in the block */
    size_t n, floats;           /* parameters; numbers in the block */
    /* For GPUs: ranks have equal parts of each bucket; a rank updates its pieces, or with
     * options.replicated everything. */
    const struct bucket *buckets;    /* [nbuckets] */
    const struct rank_piece *pieces; /* [npieces] */
    size_t nbuckets, npieces;
    struct optim *optim;
    const struct ddp_parallel_options *options; /* during open() */
};

struct device;

struct device_type {
    /* All ranks call it; fails on all if it does on one. Uses the current GPU. */
    struct device *(*open)(const struct device_job *job, struct ddp_err *err);
    /* `under_way`: what is on the stream may never end. `d` may be NULL. */
    void (*close)(struct device *d, bool under_way);
    void (*blocks)(const struct device *d, float **weights, float **grads); /* borrowed */

    /* Before a step; `idle`: this rank has no samples. */
    int (*begin)(struct device *d, bool idle, struct ddp_err *err);
    /* Takes the gradient of parameter i, times `by`. */
    int (*take)(struct device *d, size_t i, float by, struct ddp_err *err);
    /* All gradients from this block on have been taken: reduces complete buckets. */
    int (*reduce)(struct device *d, const struct param *block, struct ddp_err *err);
    /* After reducer_finish(). Updates the weights, as reducer_step(), and copies them to
     * the caller's. Waits for a GPU only if a norm is wanted. `how` NULL: no rank had
     * samples. */
    int (*step)(struct device *d, const struct step_rule *how, double *norm,
                struct ddp_err *err);

    /* All ranks call it: copies the weights of rank 0's caller to all. */
    int (*share)(struct device *d, struct ddp_err *err);
    /* The block of weights on the host, until give_back(); with `states` this rank's part
     * of the optimiser's is in job->optim. */
    float *(*fetch)(struct device *d, bool states, struct ddp_err *err);
    /* If it was changed, copies it to the device, and to the caller's. */
    int (*give_back)(struct device *d, bool changed, struct ddp_err *err);
};

extern const struct device_type device_host;

/* ---- parallel_check.c: what ranks give to ddp_parallel_create() ---- */

/* Refuses what this rank has, alone: sizes, parameters that share weights, options. */
int parallel_check(const struct ddp_param *params, size_t n,
                   const struct ddp_parallel_options *o, struct ddp_err *err);
/* Names identify arrays in a file, whose arrays have a limit, too. */
int parallel_check_names(const struct ddp_param *params, size_t n, struct ddp_err *err);
/* All ranks call it: an error on all if a rank's parameters or options differ, which
 * would add what does not belong together, in places of equal sizes without an error. */
int parallel_agree(struct ddp_group *g, const struct ddp_param *params, size_t n,
                   const struct ddp_parallel_options *o, struct ddp_err *err);
/* What one rank alone finds wrong, with `rc` -1, is an error on all, which names it: none
 * waits for it. */
int parallel_refuse(struct ddp_group *g, int rc, struct ddp_err *err);

#endif
