/* worker/engine.h - what computes a step: this process's CPUs, or a GPU
 *
 * The trainer decides which samples are used at which learning rate; an engine does the
 * step: batch, forward, backward, reduction over the ranks, optimiser. Steps are
 * submitted in order, and results come in the same order, at once or later: a GPU that
 * is one step behind never waits for the host.
 *
 * The job's model and optimiser are the host's copy, which checkpoints are read into
 * and written from. push() and pull() move it; for an engine that works on the host's
 * copy they do nothing.
 *
 * An error that only one rank has is reported when the engine is opened; later errors
 * are every rank's, as the group's are.
 */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "include/ddprun/group.h"
#include "worker/data/dataset.h"
#include "worker/ddp/reducer.h"
#include "worker/kernels/augment.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"
#include "worker/report/trace.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* How steps are done: what a user may ask for (config.h). */
struct engine_options {
    enum precision precision;
    int batch_size; /* most samples of a rank in a batch */
    int threads;    /* CPUs of this rank */
    bool dropout;
    float label_smoothing;  /* of the training loss (kernels.h: smooth) */
    bool sync_norms;        /* batch normalisation over the ranks */
    struct augment augment; /* of training images; its key comes with each step */
    int accumulate;         /* batches of a step */
    double clip_norm;       /* of its gradients; 0: none */
    bool skip_bad;          /* skip a step whose gradients are not finite */
    int stages;             /* pipeline stages of the model, 1 or 2, */
    int micro;              /* and the micro-batches of a batch */
    bool deterministic;     /* only algorithms that give the same bits each time */
    double tune;            /* seconds for measuring algorithms; 0: none */
};

/* The parameters of an engine: borrowed until it is closed. */
struct engine_job {
    struct engine_options how;
    struct ddp_group *group; /* its arena: space for the model three times, and 1 MiB */
    struct model *model;
    struct optim *optim;
    const struct kernels *kernels; /* the CPU's */
    const struct dataset *data;
    int local_rank;     /* its number among the ranks of its host */
    int64_t timeout_ms; /* for a step: the group's */
    struct reducer_settings buckets;
    struct trace *trace; /* NULL: no trace */
};

/* Are batches normalised over the samples of all ranks? */
static inline bool engine_shares_norms(const struct engine_job *job)
{
    return job->how.sync_norms && ddp_group_size(job->group) > 1;
}

/* The number of batches in a step with `mine` samples of this rank. Ranks that share
 * norms all have as many as the one with the most samples. */
static inline int engine_batches(const struct engine_job *job, int mine, int all)
{
    int size = ddp_group_size(job->group);
    int most = engine_shares_norms(job) ? (all + size - 1) / size : mine;
    return (most + job->how.batch_size - 1) / job->how.batch_size;
}

/* Samples of batch i of a rank with `mine` in the step. */
static inline int engine_batch(const struct engine_job *job, int mine, int i)
{
    int left = mine - i * job->how.batch_size;
    return left < 0 ? 0 : left < job->how.batch_size ? left : job->how.batch_size;
}

struct engine_step {
    const uint32_t *which; /* this rank's samples of the training part; read before step()
                              returns */
    int mine, all;         /* samples: of this rank, of all */
    float lr;
    uint64_t step;     /* taken before this one */
    uint64_t position; /* samples of the epoch assigned up to and including this step */
    uint64_t dropout_seed, dropout_draw; /* of the step, of this rank: rng.h */
    uint64_t augment_key;                /* of the epoch: augment.h */
    int signal;                          /* this rank has received; 0: none */
};

/* The signal of a rank, for the others. */
static inline struct step_sums engine_told(int signal)
{
    return (struct step_sums){.stop = signal != 0,
                              .interrupted = signal == SIGINT,
                              .warned = signal == SIGUSR1};
}

struct engine_result {
    struct engine_step of; /* as submitted, without `which` */
    struct step_sums sums; /* over the ranks */
    float loss;            /* this rank's own mean */
    float loss_scale;      /* fp16: of the next step; else 0 */
    char where[64];        /* where the first bad number on this rank is; "": nowhere, */
    int depth;             /* and its depth in the model */
};

/* An engine, for the user; the texts are its own. */
struct engine_info {
    const char *text; /* "avx512, 1 thread per rank" */
    size_t buckets;   /* of gradients; 0: each rank reads its part of the others' */
    /* The outcome of `tune`; "": prepare() was not called. NULL: it has no choice of
     * algorithms. */
    const char *tuned;
    double peak;  /* of its devices, FLOP/s in the products' precision; 0: unknown */
    size_t bytes; /* of their memory that it uses */
};

struct engine;

struct engine_type {
    const char *name;
    /* Could it be opened on this machine? -1 with the reason if not. NULL: always. */
    int (*probe)(struct ddp_err *err);
    struct engine *(*open)(const struct engine_job *job, struct ddp_err *err);
    void (*close)(struct engine *e); /* NULL is allowed */
    struct engine_info (*info)(const struct engine *e);
    /* Runs or submits a step. Returns 1 with the oldest result not returned yet, 0 if
     * there is none so far, -1 with `err`. A step whose loss is not finite on any rank
     * changes no weight; with `skip_bad` it counts as skipped rather than bad, and so
     * does one whose gradients are not finite. */
    int (*step)(struct engine *e, const struct engine_step *step,
                struct engine_result *result, struct ddp_err *err);
    /* Waits for the next result: 1, or 0 when all were returned and the buffers that
     * differ among ranks were averaged. Call it on every rank until it returns 0,
     * before any function other than step(). */
    int (*drain)(struct engine *e, struct engine_result *result, struct ddp_err *err);
    /* The mean loss over samples which[0..n) of `part` (one of the job's), n at most
     * batch_size, and the number classified correctly. */
    int (*evaluate)(struct engine *e, const struct samples *part, const uint32_t *which,
                    int n, float *loss, int *correct, struct ddp_err *err);
    /* On every rank: host to engine, engine to host. */
    int (*push)(struct engine *e, struct ddp_err *err);
    int (*pull)(struct engine *e, struct ddp_err *err);
    /* The gradients' reducer, which knows this rank's pieces and the plan of buckets,
     * between steps. NULL: they are not in the host's memory. */
    struct reducer *(*reducer)(const struct engine *e);
    /* Called on every rank after push(), NULL: not needed. Does the one-time work for a
     * step of so many samples, of this rank and of all. */
    int (*prepare)(struct engine *e, int mine, int all, struct ddp_err *err);
};

extern const struct engine_type engine_cpu;

/* May engine_find() find the GPU's on this rank? */
bool engine_may_be_cuda(const char *name);
/* Opens the engine called `name`; with NULL the GPU's if every rank of the group has
 * one, else the CPU's. `why` tells the user what was chosen, and why not another. The
 * result is the same on all ranks; NULL with `err` on all. In engine_find.c. */
const struct engine_type *engine_find(const char *name, struct ddp_group *group,
                                      char *why, size_t size, struct ddp_err *err);

#endif
