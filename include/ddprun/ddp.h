/* include/ddprun/ddp.h - data parallelism for a training loop of your own
 *
 * Each rank computes the gradients of its samples; the library sums them over the ranks
 * during backward, and updates the weights, which stay the same on all ranks. As in
 * ddp-train on CPUs, gradients are reduced in buckets, the optimiser is sharded over the
 * ranks, and ranks that all share one host's memory reduce in place there.
 *
 *     struct ddp_parallel *p = ddp_parallel_create(group, params, n, NULL, &err);
 *     for (;;) {
 *         ddp_parallel_begin(p, samples, &err);
 *         ... forward; backward, and as each gradient is final:
 *             ddp_parallel_ready(p, i);
 *         ddp_parallel_step(p, lr, &step, &err);
 *     }
 *
 * All ranks take the same steps, with the same parameters in the same order, the same
 * options (checked by create()); rank 0's lr counts. A rank that has run out of samples
 * continues with 0 samples, without calls of ready(), until step.samples is 0: then no
 * rank has samples left.
 *
 * Between begin() and step() the library uses the group: collectives of your own need
 * another, such as one by ddp_group_split(). To accumulate gradients of several batches,
 * call begin() once, with the samples of all, and ready() in the last one.
 *
 * With options.cuda weights and gradients are in the memory of the GPU that is the
 * current device in all calls. The group has a backend for host memory, as by default: it
 * checks and controls, while NCCL reduces gradients and gathers weights. Calls put work
 * on a stream of the library and return. It waits for options.cuda_stream where ready()
 * or share() is called, and that stream waits for the end of a step; so the program may
 * call ready() and step() while the GPU computes backward. With clip_norm, step() waits
 * for the GPU. load(), save(), keep(), restore(), check() and swap_average() copy through
 * the host's memory: 4 bytes for each element during the call, and except in check() and
 * keep() as much for each of the optimiser's states.
 *
 * Errors: functions return 0, or -1 with `err` filled, those that return a pointer NULL;
 * after an error only ddp_parallel_destroy() may be called. Threads: one at a time for a
 * group and all that is made from it; ddp_parallel_save() writes in a thread of its
 * own. The optimisers are PyTorch's, with its defaults (adam, adamw:
 * betas 0.9 and 0.999, eps 1e-8; adadelta: rho 0.9, eps 1e-6); sharding them is stage 1
 * of Rajbhandari et al., "ZeRO", SC 2020.
 */
#ifndef DDPRUN_DDP_H
#define DDPRUN_DDP_H

#include "group.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter and its gradient, `count` floats each. Where a pointer is NULL,
 * ddp_parallel_create() sets it to memory of the library, aligned to 64 bytes: of the
 * group's arena, which ranks of a host share, or of the GPU. In each step gradients of
 * your own are copied to such memory, and weights of your own from it; after changing
 * weights call ddp_parallel_share(). Memory of your own stays yours, and must stay until
 * ddp_parallel_destroy(); weights of two parameters do not overlap. */
struct ddp_param {
    const char *name; /* for errors (may be NULL), and in checkpoints, where names differ,
                         are UTF-8 and do not begin with "optim." or "__"; borrowed until
                         destroy() */
    float *weight, *grad;
    size_t count;  /* below 2^31 with options.checkpoint */
    bool no_decay; /* without options.decay, as biases and norms usually are */
};

/* A number outside of its range is an error of create(). */
struct ddp_parallel_options {
    const char *optimiser;  /* "sgd" (NULL), "adam", "adamw" or "adadelta" */
    float momentum;         /* of sgd; 0 or more */
    float decay;            /* PyTorch's weight_decay; 0, also for adamw: none */
    float beta2;            /* of adam and adamw, below 1; 0: 0.999 */
    float clip_norm;        /* largest norm of the gradients; 0: no clipping */
    size_t first_bytes;     /* of the first bucket, at most `bytes`; 0: 1 MiB */
    size_t bytes;           /* of each other bucket; 0: 25 MiB */
    bool replicated;        /* the optimiser is not sharded; then */
    bool buckets_by_time;   /* plan buckets after five steps, by measured times */
    const char *checkpoint; /* a file, or a folder (an existing one, or a name that ends
                               in /); borrowed until destroy(). NULL: none */
    float ema; /* below 1: keep an average of the weights, of which each step keeps this
                  part, as ddp-train --ema does, in checkpoints, too; 0: none */
    bool cuda; /* weights and gradients are in CUDA memory, see above; then */
    void *cuda_stream; /* the cudaStream_t with the program's backward pass; NULL: the
                          legacy default stream */
};

/* Set by the caller to this rank's numbers, by ddp_parallel_step() to those of all. */
struct ddp_step {
    float loss;     /* mean over this rank's samples; result: over all samples */
    size_t samples; /* result: of all ranks, exact up to 2^24 */
    float norm;     /* result: of the gradient before clipping, 0 without clip_norm; if it
                       is not finite, the step has changed no weight */
};

struct ddp_parallel; /* owned by the caller */

/* All ranks call it, with the same shapes. `params` has n elements, at least 1, which
 * are read, and whose NULL pointers are set, during the call only. Rank 0's weights are
 * copied to all ranks: initialise yours before or, where the library allocates them,
 * before ddp_parallel_share(). Options NULL: defaults. The group is borrowed; its arena
 * (arena_bytes; 64 MiB if 0) needs 8 bytes for each element, 128 for each parameter, and
 * 4 KiB; none with options.cuda. */
DDP_API struct ddp_parallel *
ddp_parallel_create(struct ddp_group *g, struct ddp_param *params, size_t n,
                    const struct ddp_parallel_options *options, struct ddp_err *err);
/* Each rank by itself; NULL is allowed. A checkpoint that ddp_parallel_finish() has not
 * waited for may stay incomplete. Memory of the arena is freed with the group. */
DDP_API void ddp_parallel_destroy(struct ddp_parallel *p);
/* All ranks call it between steps: copies rank 0's weights to all ranks again, e.g. after
 * it has read a file. */
DDP_API int ddp_parallel_share(struct ddp_parallel *p, struct ddp_err *err);

/* All ranks call it: begins a step with `samples` samples on this rank, 0 or more. */
DDP_API int ddp_parallel_begin(struct ddp_parallel *p, size_t samples,
                               struct ddp_err *err);
/* The gradient of params[i], of the mean loss over this rank's samples, is final. It must
 * not be accessed until the step has ended. Any order is allowed; the reduction overlaps
 * best with backward if the last parameters are ready first. Errors are those of
 * ddp_parallel_step(). */
DDP_API void ddp_parallel_ready(struct ddp_parallel *p, size_t i);
/* Ends a step on all ranks, and updates the weights by the gradient of the mean loss over
 * all samples, unless there are none, at rank 0's lr, which is 0 or more. step NULL: a
 * loss of 0, and no numbers. Fails on all ranks if one of them has not called ready() for
 * each parameter, or has for one that does not exist. */
DDP_API int ddp_parallel_step(struct ddp_parallel *p, float lr, struct ddp_step *step,
                              struct ddp_err *err);
/* With options.ema, all ranks call it between steps, after the first one: exchanges the
 * weights and their average, for a test. The next call, which comes before any begin(),
 * save() and keep(), exchanges them back. */
DDP_API int ddp_parallel_swap_average(struct ddp_parallel *p, struct ddp_err *err);

/* Checkpoints on disk, in options.checkpoint, which only one job may use at a time:
 * safetensors files with weights and optimiser, replaced atomically, and loaded by any
 * number of ranks. Those larger than 1 GiB are written by all ranks. An error on one rank
 * is returned on all, with the same text.
 *
 * All ranks call load() once, before the first step. It loads the newest complete
 * checkpoint on all ranks and sets *step to the number that it was saved with; 0: there
 * is none, or it has weights only. */
DDP_API int ddp_parallel_load(struct ddp_parallel *p, uint64_t *step,
                              struct ddp_err *err);
/* All ranks call it between steps; `step` is the program's own count, at least 1, and the
 * same on all ranks, or an error on all. Copies the state; a thread writes the copy
 * during the next steps. Waits for the previous checkpoint first: it is on disk if this
 * returns 0, else the error says why not. */
DDP_API int ddp_parallel_save(struct ddp_parallel *p, uint64_t step, struct ddp_err *err);
/* All ranks call it at the end: waits for what save() and keep() have started. */
DDP_API int ddp_parallel_finish(struct ddp_parallel *p, struct ddp_err *err);

/* Checkpoints in the memory of the hosts, like ddp-train --peer-checkpoint: each rank's
 * part of weights and optimiser is also kept on the next host, so losing a host, or any
 * number of ranks, costs the steps since the last keep(). For jobs that may restart
 * (--max-restarts, --spares, --nnodes MIN:MAX), with any number of ranks; in others,
 * whose ranks have no DDPRUN_KEPT_MEMORY in their environment, nothing is kept, without
 * an error.
 *
 * All ranks call restore() once, before the first step, with *step as load() has set it
 * (0: nothing loaded). If the hosts' memory has a later step, it restores weights and
 * optimiser on all ranks and sets *step to that step. */
DDP_API int ddp_parallel_restore(struct ddp_parallel *p, uint64_t *step,
                                 struct ddp_err *err);
/* All ranks call it between steps; `step` as for save(). Copies the state, and sends the
 * copies during the next steps. Waits for those of the previous call first. */
DDP_API int ddp_parallel_keep(struct ddp_parallel *p, uint64_t step, struct ddp_err *err);

/* All ranks call it between steps. Fails unless they have the same weights, bit by bit:
 * the error names the first parameter and rank that differ from rank 0. */
DDP_API int ddp_parallel_check(struct ddp_parallel *p, struct ddp_err *err);

#ifdef __cplusplus
}
#endif
#endif
