/* worker/cuda/engine_impl.h - shared by the files of the engine
 *
 * engine_cuda.c: the engine's interface, and the life of a step; transfer.c: copies of
 * the model between host and devices; devices.c: the choice of devices and of each
 * one's layers; setup.c: memory, streams and data; record.c: a step captured as a
 * graph; stages.c: the pipeline schedule of its micro-batches; sums.c: reductions over
 * the ranks; autotune_ranks.c: the same algorithms on all ranks; spans.c: durations of a
 * step's parts; nan_trace.c: the layer in which a NaN began.
 */
#ifndef WORKER_CUDA_ENGINE_IMPL_H
#define WORKER_CUDA_ENGINE_IMPL_H

#include "worker/cuda/comm.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/layers.h"
#include "worker/cuda/resources.h"
#include "worker/engine.h"
#include "worker/pipeline.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SLOTS = 2, MAX_GRAPHS = 8 };

/* One part of the data set (training or test) on the device; NULL if it is not there:
 * images and labels, inputs and targets, or only x, the tokens. */
struct resident {
    char *x, *t;
};

/* A step's buffers, on the host and on the device. The host fills one slot while the
 * device runs the other's step. */
struct slot {
    struct cuda_step *in;       /* pinned; followed by the samples' indices */
    struct cuda_result *result; /* pinned */
    char *bytes;                /* pinned: a batch of a data set that is not resident */
    struct resident staged;     /* on the device */
    size_t staged_bytes;
    cudaEvent_t left, arrived, done;
    const struct spans *spans; /* of the graph that is replayed; NULL: not traced */
    struct engine_step of;
    bool busy; /* its result has not been returned */
};

/* A range of the model's parameters that this rank updates, in floats. */
struct piece {
    size_t offset, count;
    bool of_all; /* all ranks update it */
};

struct spans;

struct graph {
    int all, n, batches;  /* samples: of all ranks, of this one; its batches */
    uint64_t turn;        /* the slot's number; 0 unless steps are traced */
    cudaGraphExec_t exec; /* NULL: capture failed */
    struct spans *spans;  /* owned; NULL: not traced */
};

/* The buffers of one micro-batch in flight on a stage. */
struct set {
    struct layers *net; /* owned; set 0's owns what all sets share */
    void *t;            /* labels or targets */
    cudaEvent_t sent;   /* to the neighbouring stage, which waits for it */
    char *box; /* pinned, like struct mail; NULL if devices can access each other */
};

/* Pinned memory for messages between stages whose devices cannot access each other. */
struct mail {
    struct cuda_step orders;
    double parts[CUDA_PARTS];
    struct cuda_verdict verdict; /* the last stage's */
    float tied[];                /* the embedding's weight, or its gradient */
};

/* A range of layers with their parameters on a device; the whole model if there are no
 * stages. Several stages may be on one device. */
struct stage {
    struct engine *e;
    int index, device, lane; /* lane: comm.h */
    char where[16];          /* in errors: ", stage 2"; "" if it is the only one */
    int from, to;            /* layers */
    struct layers_part part; /* its parameters */
    struct resources *memory;
    /* compute; reductions; to the neighbouring stage */
    cudaStream_t main, sums, away;
    cudaEvent_t ready, summed; /* between main and sums */
    cudaEvent_t left;          /* main's position, for other streams to wait for */
    struct set sets[PIPELINE_STAGES];

    float *weights, *grads;
    struct cuda_verdict *verdict; /* its head precedes the gradients in memory */
    float *extra;                 /* gradients of micro-batches after a step's first */
    double *parts;                /* of the gradients' norm: each stage's part */
    float *states[OPTIM_STATES];  /* of this rank's pieces, one after the other */
    size_t *borders;              /* the optimiser's */
    struct cuda_scaler *scaler;   /* NULL unless fp16 */
    uint64_t *updates;
    struct cuda_step *in; /* on the device; at the first stage followed by samples */
    struct cuda_result *result;

    struct bucket *buckets; /* those of the engine's buckets that are this stage's */
    size_t nbuckets, started;
    struct piece *pieces; /* owned; all parameters if the optimiser is not sharded */
    size_t npieces;
    bool first, last;   /* micro-batch of the step being captured */
    bool none;          /* a micro-batch without samples of this rank */
    cudaEvent_t anchor; /* an event that completed at anchor_ns */
    int64_t anchor_ns;
};

struct engine {
    struct engine_job job;
    int rank, size, nstages;
    struct stage stages[PIPELINE_STAGES];
    struct resources memories[PIPELINE_STAGES]; /* one per device */
    int micro, max_micro; /* number of micro-batches; most samples of one */
    struct mail *mail;    /* pinned; NULL unless `far` */
    bool far;             /* the stages' devices cannot access each other */
    cudaStream_t copies;  /* of data, to the first stage */
    struct comm *comm;    /* NULL: one rank */
    float *as_float;
    struct resident train, test;
    bool resident;

    struct bucket *buckets; /* owned; the last stage's first */
    size_t nbuckets;
    bool apart; /* the ranks' buffers (running means) differ since the last average */
    struct graph graphs[MAX_GRAPHS];
    int ngraphs;
    struct slot slots[SLOTS];
    uint64_t given, taken; /* steps submitted; results returned */
    struct spans *spans;   /* of the step being captured; NULL: not traced */
    struct tuner tuner;    /* with --tune: the choice of algorithms, */
    char *tuned;           /* owned: and the report on it; NULL: none was made */
    double peak;           /* FLOP/s of a device; 0: unknown */
    bool by_hand;          /* steps run without a graph, for the reason in `text` */
    char *text;            /* owned */
};

static inline struct stage *first_of(struct engine *e)
{
    return &e->stages[0];
}

static inline struct stage *last_of(struct engine *e)
{
    return &e->stages[e->nstages - 1];
}

/* for (EACH_STAGE(s, e)) */
#define EACH_STAGE(s, e)           \
    struct stage *s = first_of(e); \
    s <= last_of(e);               \
    s++
#define EACH_STAGE_BACK(s, e)         \
    struct stage *s = last_of(e) + 1; \
    s-- > first_of(e);

/* Makes the stage's device current. Required before kernels are launched on its
 * streams, not before copies and waits. */
static inline void stage_enter(const struct stage *s)
{
    CUDA(cudaSetDevice(s->device));
}

/* The address in a block of this stage that corresponds to an offset in the model's
 * block. */
static inline float *place_in(const struct stage *s, float *block, size_t offset)
{
    return block + (offset - s->part.offset);
}

static inline uint32_t *which_of(struct cuda_step *in)
{
    return (uint32_t *)(in + 1);
}

static inline bool classifies(const struct engine *e)
{
    return e->job.data->task == TASK_CLASSIFY;
}

static inline bool has_tokens(const struct engine *e)
{
    return e->job.data->task == TASK_TOKENS;
}

/* Of a sample: its input, and its label or targets. Tokens are both. */
static inline size_t input_bytes(const struct engine *e)
{
    const struct io_shape *s = &e->job.data->shape;
    return has_tokens(e) ? ((size_t)s->W + 1) * sizeof(uint32_t)
                         : (size_t)s->C * (size_t)s->H * (size_t)s->W *
                               (e->job.data->train.pixels ? 1 : sizeof(float));
}

static inline size_t target_bytes(const struct engine *e)
{
    return classifies(e)   ? sizeof(uint32_t)
           : has_tokens(e) ? 0
                           : (size_t)e->job.data->shape.outputs * sizeof(float);
}

static inline const char *inputs_of(const struct samples *part)
{
    return part->pixels ? (const char *)part->pixels : (const char *)part->inputs;
}

static inline const char *targets_of(const struct engine *e, const struct samples *part)
{
    return classifies(e) ? (const char *)part->labels : (const char *)part->targets;
}

/* This rank's samples of a step, at most. */
static inline size_t most_samples(const struct engine *e)
{
    return (size_t)e->job.how.batch_size * (size_t)e->job.how.accumulate;
}

/* ---- setup.c ---- */
int engine_probe(struct ddp_err *err);
struct engine *engine_open(const struct engine_job *job, struct ddp_err *err);
void engine_close(struct engine *e);
/* Waits for copies from pageable memory, which return before the data are on the
 * device; our streams do not wait for them. */
void engine_arrive(struct engine *e);

/* ---- transfer.c: the model's parameters, optimiser states and buffers ---- */
enum direction { TO_DEVICE, TO_HOST };
void transfer_buffers(struct engine *e, enum direction way);
void transfer_model(struct engine *e, enum direction way);

/* ---- devices.c ---- */

/* Splits the layers into stages and chooses a device for each. With several stages
 * every rank must call it. */
int stages_place(struct engine *e, struct ddp_err *err);
/* Copies another engine's choice, for another batch size. */
void stages_place_as(struct engine *e, const struct engine *other);

/* ---- stages.c ---- */

/* The first stage's main stream, on which graphs are launched, waits for the others'. */
void stages_join(struct engine *e);
/* What is done from here on (cuda_doing()), and at which stage: "a step, stage 2". */
void stage_doing(const struct stage *s, const char *what);

/* Adds "conv1 to conv2 | fc1 to fc2 on GPUs 0 and 1" to the engine's text. */
void stages_describe(struct engine *e);
/* Sends a step's parameters (learning rate, dropout) from the first stage to the
 * others, which wait for them. */
void stages_order(struct engine *e);
/* A net's `done`: reports to spans.c. */
void stage_put_layer(const char *layer, const char *way, void *stage);
/* Copies n bytes from one stage to another, whose main stream waits for them. `box`:
 * offset of this message in the engine's mail. */
void stage_tell(const struct stage *from, const void *bytes, const struct stage *to,
                void *at, size_t n, size_t box);
/* After an update of the embedding's weight: sends it to the last stage, if the logits
 * there share it. */
void stages_tie(struct engine *e);
/* Most bytes that a set passes between stages. */
size_t stages_box_bytes(const struct engine *e);
/* Runs batch i of `batches`, in micro-batches, of a step with n samples of this rank:
 * forward and backward through all stages. */
void stages_put_batch(struct engine *e, int i, int n, int batches);
/* Runs k samples, from `from` on, of the step in `in` forward through all stages, in
 * set 0. `learn`: as micro-batch `batch` of a step, else as in a test. */
void stages_forward(struct engine *e, int from, int k, bool learn, int batch);
/* The loss of a set's outputs at the last stage and, unless `in` is NULL, its gradient;
 * see kernels.h. With tokens also a part of the weight gradients, in `grads`. */
void stages_loss(struct engine *e, int set, int n, const struct cuda_step *in, int batch,
                 float *grads);
/* Sets sizes[k] to 1 for each size k of the micro-batches of n samples. */
void stages_sizes(const struct engine *e, int n, uint8_t *sizes);
/* Makes the plans for these. */
void stages_warm_up(struct engine *e, int n);

/* ---- autotune_ranks.c; does nothing without --tune ---- */

/* Chooses algorithms on rank 0, and applies them on all ranks, for steps in which this
 * rank has n samples in `batches` batches. Every rank calls it, before such a
 * step is captured. */
int autotune_on_all_ranks(struct engine *e, int n, int batches, struct ddp_err *err);

/* ---- record.c ---- */

/* The graph of a step, for this slot; NULL: a failure. `all`, samples of all ranks,
 * determines `mine`: a step is captured by all ranks at the same time, or by none, and
 * they replay what they have captured together, as NCCL requires ("Using NCCL with CUDA
 * Graphs"). */
const struct graph *engine_graph(struct engine *e, int mine, int all, uint64_t slot);
/* Launches the step on the first stage's main stream, as a graph if there is one. */
void engine_put_step(struct engine *e, const struct graph *g);
/* Frees a graph's resources. */
void engine_forget(struct engine *e, struct graph *g);

/* nan_trace.c: finds the first NaN or infinity on this rank after a step with a bad
 * loss. Every rank calls it. Waits for steps in flight first. */
void engine_find_bad(struct engine *e, const struct slot *slot,
                     struct engine_result *result);

/* ---- sums.c ---- */

/* Is the optimiser sharded: does each rank update only a part of the weights? */
static inline bool shares_out(const struct engine *e)
{
    return e->size > 1 && e->job.buckets.shard;
}

/* Plans buckets by size, and this rank's pieces of them. */
void sums_plan(struct engine *e);
/* Floats of one optimiser state on this rank. */
size_t sums_state_floats(const struct stage *s);

/* A net's `ready`, of a micro-batch's gradients. */
void sums_ready(size_t offset, size_t count, void *stage);
/* Starts the remaining reductions; the main stream waits for all. */
void sums_finish(struct stage *s);
/* Runs each of a step's collectives once, without effect, before the first step is
 * captured: NCCL connects ranks at their first collective, which all ranks must reach
 * at the same time. */
void sums_warm_up(struct engine *e);
/* Sums for norms over the ranks. Uses the stream of all other reductions, so that their
 * order is the same on all ranks. */
void sums_norm(double *v, size_t n, void *stage);
/* The norm's parts of all gradients. */
void sums_squares(struct stage *s);
/* Gathers all ranks' pieces into `block`, which has the layout of the stage's
 * gradients. */
void sums_gather(struct stage *s, float *block);

/* ---- spans.c; without --trace nothing is done ---- */

/* Before and after the capture of a step. Its spans are reported each time it is
 * replayed. */
void spans_begin(struct engine *e);
struct spans *spans_end(struct engine *e);
void spans_free(struct spans *s); /* NULL is allowed */
/* Ends a span on the stage's main stream; it began where the previous one ended.
 * `what` NULL: not reported. */
void spans_mark(struct stage *s, enum trace_row row, const char *what);
/* The same for computation. */
void spans_computed(struct stage *s, const char *what);
/* The same on the stream `sums`, for a reduction of `bytes`. */
void spans_sum(struct stage *s, const char *what, size_t bytes);
/* Before a step is submitted; after it has completed. */
void spans_anchor(struct engine *e);
void spans_tell(struct engine *e, const struct slot *slot);

#endif
