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
#include "worker/ddp/shard.h"
#include "worker/kernels/augment.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"
#include "worker/report/trace.h"

#include <stdbool.h>
#include <stdint.h>

/* What an engine is made from: borrowed, until it is closed. */
struct engine_job {
    struct ddp_group *group; /* its arena: room for the model three times, 1 MiB */
    struct model *model;
    struct optim *optim;
    const struct kernels *kernels; /* the CPU's */
    enum precision precision;      /* that was asked for */
    const struct dataset *data;
    int batch_size;     /* of a rank: the most samples of a step */
    int threads;        /* CPUs of this rank */
    int local_rank;     /* its number among the ranks of its host */
    int64_t timeout_ms; /* for a step: the group's */
    bool dropout;
    bool sync_norms;        /* batch normalisation over the ranks */
    struct augment augment; /* of training images; its key comes with each step */
    struct reducer_settings buckets;
    int accumulate;      /* batches of a step: `mine` is up to so many times batch_size */
    double clip_norm;    /* 0: none */
    bool skip_bad;       /* a step whose gradients are not finite is left out */
    int stages;          /* of the model, 1 or 2, */
    int micro;           /* and the micro-batches that go through them */
    struct trace *trace; /* NULL: no trace */
    bool profile;        /* ranges are marked for a profiler */
    double tune; /* seconds in which the fastest algorithms may be looked for; 0: none */
};

/* Are batches normalised over the samples of all ranks? */
static inline bool engine_shares_norms(const struct engine_job *job)
{
    return job->sync_norms && ddp_group_size(job->group) > 1;
}

/* Batches that a rank goes through in a step with `mine` samples of its own. Ranks that
 * share norms go through as many as the one with the most samples. */
static inline int engine_batches(const struct engine_job *job, int mine, int all)
{
    int size = ddp_group_size(job->group);
    int most = engine_shares_norms(job) ? (all + size - 1) / size : mine;
    return (most + job->batch_size - 1) / job->batch_size;
}

/* Samples of batch i of a rank with `mine` in the step. */
static inline int engine_batch(const struct engine_job *job, int mine, int i)
{
    int left = mine - i * job->batch_size;
    return left < 0 ? 0 : left < job->batch_size ? left : job->batch_size;
}

struct engine_step {
    const uint32_t *which; /* this rank's samples of the training part; read before step()
                              returns */
    int mine, all;         /* samples: of this rank, of all */
    float lr;
    uint64_t step;          /* taken before this one */
    uint64_t position;      /* samples of the epoch dealt by then, with this step's */
    uint64_t dropout_seed;  /* another one on each rank */
    uint64_t augment_key;   /* of the epoch: augment.h */
    bool stop, interrupted; /* this rank got a signal; SIGINT, */
    bool warned;            /* SIGUSR1 */
};

/* What a rank tells the others of its signals. */
static inline struct step_sums engine_told(const struct engine_step *s)
{
    return (struct step_sums){.stop = s->stop ? 1 : 0,
                              .interrupted = s->interrupted ? 1 : 0,
                              .warned = s->warned ? 1 : 0};
}

struct engine_result {
    struct engine_step of; /* as it was handed in, without `which` */
    struct step_sums sums; /* over the ranks */
    float loss;            /* this rank's own mean */
    float loss_scale;      /* fp16: of the next step; else 0 */
    char where[64]; /* where on this rank the first bad number stood; "": nowhere, */
    int depth;      /* and how far through the model that is */
};

/* Capabilities of a rank's devices, and what the run uses of them. */
struct engine_device {
    double peak; /* FLOP/s in the precision that the products are made in; 0: not known */
    size_t bytes; /* of their memory */
};

struct engine;

struct engine_type {
    const char *name;
    /* Could one be opened on this machine? -1 with the reason why not. */
    int (*probe)(struct ddp_err *err);
    struct engine *(*open)(const struct engine_job *job, struct ddp_err *err);
    void (*close)(struct engine *e); /* NULL is fine */
    /* "avx512, 1 thread per rank": after open(), for a person. Owned by the engine. */
    const char *(*describe)(const struct engine *e);
    /* In which gradients are summed; 0: each rank reads its part of the others'. */
    size_t (*buckets)(const struct engine *e);
    /* Take a step, or put it in line. Returns 1 and the oldest result not given out yet,
     * 0 when there is none so far, -1 with `err`. A step whose loss is not a number on
     * any rank changes no weight; with `skip_bad` it counts as skipped, not as bad, and
     * so does one whose gradients are not finite. */
    int (*step)(struct engine *e, const struct engine_step *step,
                struct engine_result *result, struct ddp_err *err);
    /* Wait for the next result: 1, or 0 when all have been given out, and what ranks
     * remember apart (a model's buffers) is the mean of all. To be called until then, on
     * every rank, before anything else than step(). */
    int (*drain)(struct engine *e, struct engine_result *result, struct ddp_err *err);
    /* The mean loss of samples which[0..n) of `part` (one of the job's), n of at most
     * batch_size, and how many were right. */
    int (*evaluate)(struct engine *e, const struct samples *part, const uint32_t *which,
                    int n, float *loss, int *correct, struct ddp_err *err);
    /* Both on every rank: host to engine, engine to host. */
    int (*push)(struct engine *e, struct ddp_err *err);
    int (*pull)(struct engine *e, struct ddp_err *err);
    /* What has this rank's pieces, between steps. NULL: they are not in the host's
     * memory.
     */
    const struct reducer *(*reducer)(const struct engine *e);
    /* How gradients are cut in buckets, and a plan from such a text; NULL: there is none.
     */
    void (*plan_text)(const struct engine *e, char *text, size_t size);
    void (*use_plan)(struct engine *e, const char *text);
    /* By which algorithms it computes, where these were measured, and such a text of an
     * earlier run: every rank, before prepare(); NULL: there is no choice. */
    void (*algorithms_text)(const struct engine *e, char *text, size_t size);
    int (*use_algorithms)(struct engine *e, const char *text, struct ddp_err *err);
    /* For a person, behind prepare(), from line 0 on: what came of it. False:
     * that was all. */
    bool (*tell_tuned)(const struct engine *e, size_t line, char *text, size_t size);
    /* Every rank, behind push() and use_plan(), NULL: there is nothing to do. What a step
     * of so many samples, of this rank and of all, takes the first time is done now. */
    int (*prepare)(struct engine *e, int mine, int all, struct ddp_err *err);
    /* NULL: unknown. */
    void (*device)(const struct engine *e, struct engine_device *out);
};

extern const struct engine_type engine_cpu;

/* The engine called `name`, or with NULL the GPU's where every rank of the group has one,
 * else the CPU's. `why` is a text for the user: what was chosen, and why not another. The
 * same on all ranks; NULL with `err` on all of them. In engine_find.c. */
const struct engine_type *engine_find(const char *name, struct ddp_group *group,
                                      char *why, size_t size, struct ddp_err *err);

#endif
