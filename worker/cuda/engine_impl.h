/* worker/cuda/engine_impl.h - what the files of the engine share
 *
 * engine_cuda.c: the engine's interface, and the life of a step; transfer.c: copies of
 * the model between host and devices; devices.c: the choice of devices and of each one's
 * layers; setup.c: memory, streams and data; record.c: a step recorded as a graph;
 * stages.c: the pipeline schedule of its micro-batches; streams.c: dependencies between
 * streams; sums.c: reductions over the ranks; autotune_ranks.c: the same algorithms on
 * all ranks; spans.c: times of a step's parts; nan_trace.c: the layer in which a NaN
 * began.
 */
#ifndef WORKER_CUDA_ENGINE_IMPL_H
#define WORKER_CUDA_ENGINE_IMPL_H

#include "worker/cuda/autotune.h"
#include "worker/cuda/comm.h"
#include "worker/cuda/cuda_error.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/layers.h"
#include "worker/engine.h"
#include "worker/pipeline_schedule.h"

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
    const struct spans *spans; /* of the graph that is played; NULL: not measured */
    struct engine_step of;
    bool busy; /* its result has not been given out */
};

/* A part of the block that this rank updates: a place in the model's, floats. */
struct piece {
    size_t offset, count;
    bool of_all; /* the same on every rank */
};

struct spans;

struct graph {
    int n, batches;
    uint64_t turn;        /* of the slots: 0 unless the steps are watched */
    cudaGraphExec_t exec; /* NULL: it could not be recorded */
    struct spans *spans;  /* owned; NULL: not measured */
};

/* What a micro-batch has of its own on a stage. */
struct set {
    struct layers *net; /* owned: set 0's has what all share */
    uint8_t *labels;
    float *targets;
    cudaEvent_t sent; /* to the neighbour: it may go on */
    char *box;        /* pinned: as struct mail's; NULL: there is no need */
};

/* A step's numbers, which the last stage sends to the others: the factor of the gradients
 * (clipping, and the scaler's undone), this rank's own loss; and, summed over the ranks,
 * the head. In floats. */
enum { VERDICT = 2 * CUDA_HEAD };

/* What goes from stage to stage by way of the host, in pinned memory, where devices
 * cannot reach each other's. */
struct mail {
    struct cuda_step orders;
    double parts[CUDA_PARTS];
    float verdict[VERDICT];
};

/* Some of the layers, with their parameters, on a device: all of them, unless the model
 * is in stages. Several may be on one device. */
struct stage {
    struct engine *e;
    int index, device, lane; /* lane: comm.h */
    int from, to;            /* layers */
    struct layers_part part; /* which parameters */
    struct device_memory *memory;
    cudaStream_t main, sums, away; /* away: to the neighbour */
    cudaEvent_t ready, summed;     /* between main and sums, */
    cudaEvent_t left;              /* and from main to others */
    struct set sets[PIPELINE_STAGES];

    float *weights, *block, *grads; /* block: verdict, head and gradients */
    float *extra;                   /* gradients of a batch that is not a step's first */
    double *parts;                  /* of the gradients' norm: each stage's */
    float *states[OPTIM_STATES];    /* of the pieces, one after the other */
    struct cuda_scaler *scaler;     /* NULL unless it computes in fp16 */
    uint64_t *updates;
    struct cuda_step *in; /* device: the step that runs; at the first stage its samples */
    struct cuda_result *result;

    struct bucket *buckets; /* those of the engine's that are this stage's */
    size_t nbuckets, started;
    struct piece *pieces; /* owned: what this rank updates; without sharding all of it */
    size_t npieces;
    bool first, last;   /* batch of the step that is being recorded; */
    bool none;          /* of it are this rank's: others share the norms with us */
    cudaEvent_t anchor; /* passed at anchor_ns */
    int64_t anchor_ns;
};

struct engine {
    struct engine_job job;
    int rank, size, nstages;
    struct stage stages[PIPELINE_STAGES];
    struct device_memory memories[PIPELINE_STAGES]; /* of the devices */
    int micro, max_micro; /* micro-batches; samples of one, at most */
    struct mail
        *mail; /* pinned; NULL unless it is far: devices cannot reach each other */
    bool far;
    cudaStream_t copies; /* of data, to the first stage */
    struct comm *comm;   /* NULL: alone */
    float *as_float;
    struct resident train, test;
    bool resident;

    struct bucket *buckets; /* owned; of the last stage first */
    size_t nbuckets;
    bool settled; /* on the buckets by time */
    bool apart;   /* the ranks' buffers: steps were taken since they were made alike */
    struct graph graphs[MAX_GRAPHS];
    int ngraphs;
    struct slot slots[SLOTS];
    uint64_t given, taken; /* steps handed in; results given out */
    struct spans *spans;   /* of the step that is being recorded, if they are wanted */
    struct tuner *tuner;   /* owned; NULL: products are computed in the usual way */
    double peak;           /* FLOP/s of a device; 0: not known */
    bool by_hand;          /* steps, as text says */
    char text[500];
};

static inline struct stage *first_of(struct engine *e)
{
    return &e->stages[0];
}

static inline struct stage *last_of(struct engine *e)
{
    return &e->stages[e->nstages - 1];
}

static inline float *scale_of(const struct stage *s)
{
    return s->block;
}

static inline float *own_of(const struct stage *s)
{
    return s->block + 1;
}

static inline struct cuda_head *head_of(const struct stage *s)
{
    return (struct cuda_head *)(s->block + CUDA_HEAD);
}

/* A place in the model's block, in one of this stage's. */
static inline float *place_in(const struct stage *s, float *block, size_t offset)
{
    return block + (offset - s->part.offset);
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
int engine_arrive(struct engine *e, const char *what, struct ddp_err *err);

/* move.c: host to devices, devices to host. */
enum direction { TO_DEVICE, TO_HOST };
int transfer_buffers(struct engine *e, enum direction way, struct ddp_err *err);
int transfer_model(struct engine *e, enum direction way, struct ddp_err *err);

/* place.c */

/* Cut the layers, and choose a device for each stage. With more than one every rank calls
 * it. */
int stages_place(struct engine *e, struct ddp_err *err);
/* As another engine's, with a batch of its own. */
void stages_place_as(struct engine *e, const struct engine *other);

/* order.c */

/* Make the stage's device the current one: before anything but copies and waits is put on
 * its streams. */
int stage_enter(const struct stage *s, struct ddp_err *err);
/* What is put on `to` from now on waits for what is on `from`, by this event. */
int stream_follow(cudaStream_t to, cudaStream_t from, cudaEvent_t by, const char *doing,
                  struct ddp_err *err);
/* The same, for what is on main. */
int stage_left(const struct stage *s, cudaStream_t to, struct ddp_err *err);
/* The other stages go on from where the first one's main is; and it goes on behind them.
 * A graph is played on that stream. */
int stages_fork(struct engine *e, struct ddp_err *err);
int stages_join(struct engine *e, struct ddp_err *err);
/* Were all kernels taken since this was asked? Else the error names the stage:
 * "a step, stage 2: kernel ...". */
int stage_launched(const struct stage *s, const char *what, struct ddp_err *err);

/* stages.c */

/* "conv1 to conv2 | fc1 to fc2 on GPUs 0 and 1" */
void stages_describe(const struct engine *e, char *text, size_t size);
/* Send a step's parameters (learning rate, dropout) from the first stage to the others,
 * which wait for them. */
int stages_order(struct engine *e, struct ddp_err *err);
/* For layers_observe(): the kernels of a layer were launched; report it to spans.c. */
int stage_put_layer(const char *layer, char phase, void *stage, struct ddp_err *err);
/* n bytes of one stage's for another: its main goes on when they have come. `box`: a
 * place of their own in the engine's mail. */
int stage_tell(const struct stage *from, const void *bytes, const struct stage *to,
               void *at, size_t n, void *box, struct ddp_err *err);
/* Bytes that a set hands over at most. */
size_t stages_box_bytes(const struct engine *e);
/* Batch i of a step with n samples of this rank's, in `batches`: forward and back through
 * all stages; with `grads` false only forward. */
int stages_put_batch(struct engine *e, int i, int n, int batches, struct ddp_err *err);
/* k samples, from `from` on, of the step that `in` has at the first stage, forward
 * through all stages, in set 0; `learn` as in a batch `batch` of a step, else as in a
 * test. */
int stages_forward(struct engine *e, int from, int k, bool learn, int batch,
                   struct ddp_err *err);
/* The loss of a set's outputs at the last stage, and unless `in` is NULL its gradient; as
 * in kernels.h. */
void stages_loss(struct engine *e, int set, int n, const struct cuda_step *in, int batch);
/* sizes[k] becomes 1 for each k that a batch of n samples is cut in. */
void stages_sizes(const struct engine *e, int n, uint8_t *sizes);
/* Plans for these. */
int stages_warm_up(struct engine *e, int n, struct ddp_err *err);

/* agree.c; without --tune all of them do nothing, but for the last */

/* All ranks take the algorithms that rank 0 finds to be the fastest, for steps in which
 * this rank has n samples in so many batches. Every rank; before such a step is recorded.
 */
int autotune_on_all_ranks(struct engine *e, int n, int batches, struct ddp_err *err);
/* What was chosen, for a checkpoint, "": nothing; and the way back, before any choice. */
void autotune_to_checkpoint(const struct engine *e, char *text, size_t size);
int autotune_from_checkpoint(struct engine *e, const char *text, struct ddp_err *err);
/* Lines for the table at the start, from line 0 on; false: there are no more. */
bool autotune_line(const struct engine *e, size_t line, char *text, size_t size);
void autotune_ranks_free(struct engine *e);

/* record.c */

/* The graph of a step with n samples in so many batches, for this slot; NULL with `err`.
 */
const struct graph *engine_graph(struct engine *e, int n, int batches, uint64_t slot,
                                 struct ddp_err *err);
/* On the first stage's main, whether it is a graph or not. */
int engine_put_step(struct engine *e, const struct graph *g, struct ddp_err *err);
/* Lets go of what a graph holds. */
void engine_forget(struct engine *e, struct graph *g);

/* bad.c: after a step with a loss that is not a number, on every rank: where on this rank
 * the first such number stood. What is under way ends first. */
int engine_find_bad(struct engine *e, const struct slot *slot,
                    struct engine_result *result, struct ddp_err *err);

/* sums.c */

/* Does each rank update a part of the weights only? */
static inline bool shares_out(const struct engine *e)
{
    return e->size > 1 && e->job.buckets.shard;
}

/* Buckets by size, and this rank's pieces of them. */
void sums_plan(struct engine *e);
/* Floats of a state of the optimiser on this rank. */
size_t sums_state_floats(const struct stage *s);
/* Buckets by time: rehearses steps. Every rank; before the first push(). */
int sums_settle(struct engine *e, struct ddp_err *err);
void sums_plan_text(const struct engine *e, char *text, size_t size);
void sums_use_plan(struct engine *e, const char *text);

/* For layers_backward(): a range of a batch's gradients is final. */
int sums_ready(size_t offset, size_t count, void *stage, struct ddp_err *err);
/* What is left to be summed; main goes on behind it. */
int sums_finish(struct stage *s, struct ddp_err *err);
/* NCCL, too, connects the ranks when it is first asked for a collective: so each of a
 * step's once, for nothing, before the first step is recorded, which is at the same
 * moment on all ranks. */
int sums_warm_up(struct engine *e, struct ddp_err *err);
/* For layers_share_norms(). They are put on the stream of all other sums, so that these
 * have one order on all ranks. */
int sums_norm(double *v, size_t n, void *stage, struct ddp_err *err);
/* The norm's parts of all gradients. */
int sums_squares(struct stage *s, struct ddp_err *err);
/* Gather the pieces of all ranks into `block`, which has the layout of the stage's
 * gradients. */
int sums_gather(struct stage *s, float *block, struct ddp_err *err);

/* spans.c; without --trace all of them do nothing */

/* Around the recording of a step: its durations are reported each time it is played. */
int spans_begin(struct engine *e, struct ddp_err *err);
struct spans *spans_end(struct engine *e);
void spans_free(struct spans *s); /* NULL is fine */
/* A part of it has ended on the stage's main, that began where the one before ended;
 * `what` NULL: it is not reported. */
int spans_mark(struct stage *s, enum trace_row row, const char *what,
               struct ddp_err *err);
/* The same of computing. */
int spans_computed(struct stage *s, const char *what, struct ddp_err *err);
/* The same, as layers_observe() wants it. */
int spans_layer(const char *layer, char phase, void *stage, struct ddp_err *err);
/* A sum of so many bytes begins on sums; ends. */
int spans_sum(struct stage *s, const char *what, size_t bytes, struct ddp_err *err);
int spans_summed(struct stage *s, struct ddp_err *err);
/* Before a step is handed in; and when it is done. */
int spans_anchor(struct engine *e, struct ddp_err *err);
int spans_tell(struct engine *e, const struct slot *slot, struct ddp_err *err);

#endif
