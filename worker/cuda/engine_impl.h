/* worker/cuda/engine_impl.h - what the files of the engine share
 *
 * engine_cuda.c: the engine, and how a step passes through it; open.c: memory, streams
 * and data, taken and let go; record.c: a step as a graph; sums.c: what the ranks sum up,
 * and which part of it is whose; spans.c: what all of it took.
 */
#ifndef WORKER_CUDA_ENGINE_IMPL_H
#define WORKER_CUDA_ENGINE_IMPL_H

#include "worker/cuda/check.h"
#include "worker/cuda/comm.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/layers.h"
#include "worker/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SLOTS = 2, MAX_GRAPHS = 8 };

/* One part of the data on the device, or none of it. */
struct resident {
    uint8_t *pixels, *labels;
    float *inputs, *targets;
};

/* A step between host and device. */
struct slot {
    struct cuda_step *in;       /* pinned; followed by the samples' numbers */
    struct cuda_result *result; /* pinned */
    uint8_t *bytes;             /* pinned: a batch of a data set that is not resident */
    struct resident staged;     /* where it lands */
    size_t staged_bytes;
    cudaEvent_t left, arrived, done;
    const struct spans *spans; /* of the graph that is played; NULL: nobody watches */
    struct engine_step of;
    bool busy; /* its result has not been given out */
};

/* A part of the block that this rank updates. */
struct piece {
    size_t offset, count;
    bool everybodys; /* and the others, too: the same */
};

struct spans;

struct graph {
    int n, batches;
    uint64_t turn; /* of the slots: 0 unless the steps are watched */
    cudaGraphExec_t exec;
    struct spans *spans; /* owned; NULL: nobody watches */
};

struct engine {
    struct engine_job job;
    int rank, size;
    struct device_memory memory;
    cudaStream_t main, sums, copies;
    cudaEvent_t ready, summed; /* between main and sums, while recording */
    struct layers *net;
    struct comm *comm; /* NULL: alone */

    float *weights, *block, *grads; /* block: head and gradients */
    float *extra;                   /* gradients of a batch that is not a step's first */
    float *scale;                /* of the gradients: clipping, and the scaler's undone */
    double *parts;               /* of their norm */
    float *states[OPTIM_STATES]; /* of the pieces, one after the other */
    struct cuda_scaler *scaler;  /* NULL unless it computes in fp16 */
    uint64_t *updates;
    float *as_float, *targets, *own;
    uint8_t *labels;
    struct cuda_step *in; /* device: the step that runs, and its samples */
    struct cuda_result *result;
    struct resident train, test;
    bool resident;

    struct bucket *buckets; /* owned */
    size_t nbuckets, started;
    struct piece *pieces; /* owned: what this rank updates; without sharding all of it */
    size_t npieces;
    bool settled; /* on the buckets by time */
    bool apart;   /* the ranks' buffers: steps were taken since they were made alike */
    bool first, last; /* batch of the step that is being recorded; */
    bool none;        /* of it are this rank's: others share the norms with us */
    struct graph graphs[MAX_GRAPHS];
    int ngraphs;
    struct slot slots[SLOTS];
    uint64_t given, taken; /* steps handed in; results given out */
    struct spans *spans;   /* of the step that is being recorded, if they are wanted */
    cudaEvent_t anchor;    /* passed at anchor_ns */
    int64_t anchor_ns;
    double peak; /* FLOP/s; 0: not known */
    char text[200];
};

static inline struct cuda_head *head_of(const struct engine *e)
{
    return (struct cuda_head *)e->block;
}

static inline uint32_t *which_of(struct cuda_step *in)
{
    return (uint32_t *)(in + 1);
}

static inline size_t image_bytes(const struct engine *e)
{
    const struct io_shape *s = &e->job.data->shape;
    return (size_t)s->C * (size_t)s->H * (size_t)s->W;
}

static inline bool classifies(const struct engine *e)
{
    return e->job.data->task == TASK_CLASSIFY;
}

static inline bool shares_norms(const struct engine *e)
{
    return e->size > 1 && e->job.sync_norms;
}

/* Of this rank in a step. */
static inline size_t most_samples(const struct engine *e)
{
    return (size_t)e->job.batch_size * (size_t)e->job.accumulate;
}

/* open.c */
int engine_probe(struct ddp_err *err);
struct engine *engine_open(const struct engine_job *job, struct ddp_err *err);
void engine_close(struct engine *e);
/* A copy from pageable memory returns before it has reached the device, and our streams
 * do not wait for it. */
int engine_arrive(const char *what, struct ddp_err *err);

/* record.c */

/* n of the step's samples, from `from` on, into the layers' input, their labels or
 * targets beside it; to learn from them, or to test. */
void engine_gather(struct engine *e, int from, int n, bool learn);
/* The loss of the layers' output, and unless `in` is NULL its gradient; as in kernels.h.
 */
void engine_loss(struct engine *e, int n, const struct cuda_step *in, int batch);
/* Batches that this rank goes through in a step with `mine` samples of its own. Ranks
 * that share norms go through as many as the one with the most samples. */
int engine_batches(const struct engine *e, int mine, int all);
/* The graph of a step with n samples in so many batches, for this slot; NULL with `err`.
 */
const struct graph *engine_graph(struct engine *e, int n, int batches, uint64_t slot,
                                 struct ddp_err *err);
/* After a step with a loss that is not a number, on every rank: where on this rank the
 * first such number stood. What is under way ends first. */
int engine_find_bad(struct engine *e, const struct slot *slot,
                    struct engine_result *result, struct ddp_err *err);
/* Lets go of what a graph holds. */
void engine_forget(struct engine *e, struct graph *g);

/* sums.c */

/* Does each rank update a part of the weights only? */
static inline bool shares_out(const struct engine *e)
{
    return e->size > 1 && e->job.buckets.shard;
}

/* Buckets by size, and this rank's pieces of them. */
void sums_plan(struct engine *e);
/* Floats of a state of the optimiser on this rank, whatever the plan: at most. */
size_t sums_state_floats(const struct engine *e);
/* Buckets by time: rehearses steps. Every rank; before the first push(). */
int sums_settle(struct engine *e, struct ddp_err *err);
void sums_plan_text(const struct engine *e, char *text, size_t size);
void sums_use_plan(struct engine *e, const char *text);

/* For layers_backward(): a range of a batch's gradients is final; `arg` is the engine. */
int sums_ready(size_t offset, size_t count, void *arg, struct ddp_err *err);
/* What is left to be summed; main goes on behind it. */
int sums_finish(struct engine *e, struct ddp_err *err);
/* NCCL, too, connects the ranks when it is first asked for a collective: so each of a
 * step's once, for nothing, before the first step is recorded, which is at the same
 * moment on all ranks. */
int sums_warm_up(struct engine *e, struct ddp_err *err);
/* For layers_share_norms(). They are put on the stream of all other sums, so that these
 * have one order on all ranks. */
int sums_norm(double *v, size_t n, void *engine, struct ddp_err *err);
/* The norm's parts of all gradients. */
int sums_squares(struct engine *e, struct ddp_err *err);
/* Everybody's pieces of `block`, which is laid out as the gradients are. */
int sums_gather(struct engine *e, float *block, struct ddp_err *err);

/* spans.c; without --trace all of them do nothing */

/* Around a recording of a step: what it took will be told each time it is played. */
int spans_begin(struct engine *e, struct ddp_err *err);
struct spans *spans_end(struct engine *e);
void spans_free(struct spans *s); /* NULL is fine */
/* A part of it has ended on main, that began where the one before ended; `what` NULL: it
 * is not told. */
int spans_mark(struct engine *e, enum trace_row row, const char *what,
               struct ddp_err *err);
/* The same, as layers_observe() wants it. */
int spans_layer(const char *layer, char phase, void *engine, struct ddp_err *err);
/* A sum of so many bytes begins on sums; ends. */
int spans_sum(struct engine *e, const char *what, size_t bytes, struct ddp_err *err);
int spans_summed(struct engine *e, struct ddp_err *err);
/* Before a step is handed in; and when it is done. */
int spans_anchor(struct engine *e, struct ddp_err *err);
int spans_tell(struct engine *e, const struct slot *slot, struct ddp_err *err);

#endif
