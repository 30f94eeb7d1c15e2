/* worker/ddp/device.h - the parameters of ddp.h in CUDA memory: what parallel.c calls in
 * the engine's object (gpu/engine_object.h), where worker/cuda/parallel_cuda.c is
 *
 * The device has the block of weights, that of gradients, and this rank's part of the
 * optimiser's states. All it does is put on a stream of its own, which waits for the
 * caller's before it reads a gradient; the caller's stream waits for the end of a step.
 * The host is at most one step ahead.
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
    const struct ddp_param
        *params;                  /* [n]: as the caller has passed them, NULLs included */
    const struct param *blocks;   /* [n]: in the block */
    size_t n, floats;             /* parameters; numbers in the block */
    const struct bucket *buckets; /* [nbuckets]; ranks have equal parts of each, */
    const struct bucket *pieces;  /* [npieces]: this rank's, which it updates */
    size_t nbuckets, npieces;
    bool shard; /* else all ranks update everything */
    const struct optim *optim;
    void *stream;       /* the caller's cudaStream_t */
    int64_t timeout_ms; /* of each wait */
};

struct device;
enum device_way { DEVICE_TO_HOST, DEVICE_FROM_HOST };

struct device_type {
    /* All ranks call it; fails on all if it does on one. Uses the current device. */
    struct device *(*open)(const struct device_job *job, struct ddp_err *err);
    /* `under_way`: what is on the stream may never end. `d` may be NULL. */
    void (*close)(struct device *d, bool under_way);
    /* What is at `offset` of the blocks. */
    float *(*weight)(const struct device *d, size_t offset);
    float *(*grad)(const struct device *d, size_t offset);
    /* Before a step; `idle`: all gradients are 0. */
    int (*begin)(struct device *d, bool idle, struct ddp_err *err);
    /* Takes the gradient of parameter i, times `by`. */
    int (*take)(struct device *d, size_t i, float by, struct ddp_err *err);
    /* All gradients from `offset` on have been taken: reduces complete buckets. */
    int (*reduce)(struct device *d, size_t offset, struct ddp_err *err);
    /* Updates the weights by the reduced gradients, and copies them to the caller's;
     * *norm as of reducer_step(). Waits for the device only if a norm is wanted. `how`
     * NULL: no rank had samples, nothing is updated. */
    int (*step)(struct device *d, const struct step_rule *how, double *norm,
                struct ddp_err *err);
    /* Copies the weights of rank 0's caller to all. */
    int (*share)(struct device *d, struct ddp_err *err);
    /* Copies the block from or to `weights` (from the host: to the caller's, too); with
     * `states` also this rank's pieces of these: of whole states, or states->shared. */
    int (*copy)(struct device *d, enum device_way way, float *weights,
                struct optim *states, struct ddp_err *err);
};

#endif
