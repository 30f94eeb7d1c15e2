/* include/ddprun/ddp.h - data parallelism for a training loop of your own
 *
 * Each rank computes the gradients of its samples; the library adds them up while
 * backward goes on, updates the weights, and every rank has the same ones. It is what
 * ddp-train does on CPUs: gradients travel in buckets, the optimiser's work and memory
 * are shared out, and ranks that all share one host's memory reduce in place there.
 *
 *     struct ddp_parallel *p = ddp_parallel_create(group, params, n, NULL, &err);
 *     for (;;) {
 *         ddp_parallel_begin(p, samples, &err);
 *         ... forward; backward, and as each gradient is final:
 *             ddp_parallel_ready(p, i);
 *         ddp_parallel_step(p, lr, &step, &err);
 *     }
 *
 * All ranks take the same steps. A rank that has no more samples takes them with none
 * (without calls of ready()) until step.samples is 0, which means that no rank has
 * samples left. Calls return as those of group.h do; after an error only
 * ddp_parallel_destroy() may be called.
 */
#ifndef DDPRUN_DDP_H
#define DDPRUN_DDP_H

#include "group.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Floats that are trained, and where backward puts their gradient. A NULL is filled in by
 * ddp_parallel_create(): memory of the library, which ranks of a host share, aligned to
 * 64 bytes, gone with the ddp_parallel. Your own is copied, there and back. */
struct ddp_param {
    const char *name; /* for errors; borrowed */
    float *weight, *grad;
    size_t count;
};

struct ddp_parallel_options {
    const char *optimiser; /* "sgd" (NULL), "adam", "adamw" or "adadelta" */
    float momentum, decay; /* momentum of sgd; weight decay */
    float clip_norm; /* gradients are made smaller until their norm is this one; 0: not */
    size_t first_bytes,
        bytes;              /* of the first bucket, and of the others; 0: 1 and 25 MiB */
    bool replicated;        /* each rank keeps the whole optimiser; then */
    bool buckets_by_time;   /* after five steps, by when gradients are ready */
    const char *checkpoint; /* a file, or a folder of them (it exists, or the name ends in
                               /); borrowed. NULL: none */
};

/* Given with this rank's own numbers, and got with everybody's. */
struct ddp_step {
    float loss;     /* the mean over this rank's samples; over all */
    size_t samples; /* got: of all ranks, exact up to 2^24 */
    float norm;     /* got, with clip_norm: of the gradient, before it was clipped; where
                       it is not finite, the step has changed no weight */
};

struct ddp_parallel;

/* All ranks call, with the same shapes. Rank 0's weights become everybody's: fill yours
 * in before, or, where the library makes them, before ddp_parallel_share(). Options NULL:
 * none. The group is borrowed; its arena needs room for weights and gradients. */
DDP_API struct ddp_parallel *
ddp_parallel_create(struct ddp_group *g, struct ddp_param *params, size_t n,
                    const struct ddp_parallel_options *options, struct ddp_err *err);
DDP_API void ddp_parallel_destroy(struct ddp_parallel *p); /* NULL is fine */
/* Again: rank 0's weights, e.g. those of a checkpoint, become everybody's. */
DDP_API int ddp_parallel_share(struct ddp_parallel *p, struct ddp_err *err);

/* A step of `samples` on this rank begins. */
DDP_API int ddp_parallel_begin(struct ddp_parallel *p, size_t samples,
                               struct ddp_err *err);
/* The gradient of params[i], of the mean loss over this rank's samples, is final for this
 * step, and the library's until the step has ended. In any order; the sooner the last
 * ones are ready, the more of the work is done during backward. */
DDP_API void ddp_parallel_ready(struct ddp_parallel *p, size_t i);
/* Waits for everybody, and updates the weights by the gradient of the mean loss over all
 * samples; not if there are none. An error if a gradient is missing. */
DDP_API int ddp_parallel_step(struct ddp_parallel *p, float lr, struct ddp_step *step,
                              struct ddp_err *err);
/* Checkpoints on disk, in options.checkpoint, which one job has to itself: safetensors
 * files with weights and optimiser, each whole or not there at all, read at any number of
 * ranks. Larger ones than 1 GiB are written by all ranks. What fails on one rank fails on
 * all, with the same text.
 *
 * All ranks call load() once, before the first step: weights and optimiser of the newest
 * that is whole become everybody's, and *step, the number that it was saved with, is
 * where all go on. 0: there is none, or it has weights only. */
DDP_API int ddp_parallel_load(struct ddp_parallel *p, uint64_t *step,
                              struct ddp_err *err);
/* All ranks, between steps; `step` is the program's own count, at least 1. Copies the
 * state, and a thread writes the copy while the next steps go on. Waits for the one
 * before, which is on disk when this returns 0; else the error says why it is not. */
DDP_API int ddp_parallel_save(struct ddp_parallel *p, uint64_t step, struct ddp_err *err);
/* All ranks, at the end: waits for what save() and keep() have begun. */
DDP_API int ddp_parallel_finish(struct ddp_parallel *p, struct ddp_err *err);

/* Checkpoints in the memory of the hosts, as those of ddp-train --peer-checkpoint: each
 * rank's part of weights and optimiser is also kept on the next host, so a lost host, or
 * any number of ranks, costs the steps since the last keep(). For a job that may restart
 * (--max-restarts, --spares, --nnodes MIN:MAX), at any number of ranks.
 *
 * All ranks call restore() once, before the first step. Where that memory has a later
 * step than *step, which is what load() has from the disk (0: nothing), weights and
 * optimiser of that step become everybody's. *step is where all ranks go on. */
DDP_API int ddp_parallel_restore(struct ddp_parallel *p, uint64_t *step,
                                 struct ddp_err *err);
/* All ranks, between steps; `step` is the program's own count, at least 1. Copies, and
 * sends the copies while the next steps go on; waits for those of the last call. */
DDP_API int ddp_parallel_keep(struct ddp_parallel *p, uint64_t step, struct ddp_err *err);

/* Do all ranks have the same weights, bit by bit? If not, the error names the first
 * parameter and rank that differ from rank 0. */
DDP_API int ddp_parallel_check(struct ddp_parallel *p, struct ddp_err *err);

#ifdef __cplusplus
}
#endif
#endif
