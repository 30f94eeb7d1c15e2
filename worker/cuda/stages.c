/* worker/cuda/stages.c - see engine_impl.h: a batch on its way through the stages
 *
 * Stages are on the rank's two devices, or both on its only one, and take turns as
 * worker/pipeline.h has it: the host puts each turn on its stage's main stream, and what
 * one stage hands over to the other goes by a third stream, so that the next turn need
 * not wait for it.
 *
 *     stage 0  main | forward 0  forward 1            | back 0  forward 2     | back 1
 *              away |           y of 0     y of 1     |                y of 2 |
 *     stage 1  main |                forward 0 back 0 | forward 1 back 1      | ...
 *              away |                           dy of 0           dy of 1
 *
 * A stage has as many sets of activations as there are stages, which micro-batches use in
 * turn: the first stage goes forward with micro-batch m + 2 when m has come back, so that
 * all that m was handed, at either stage, is out of use by then.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"

#include <stdio.h>

/* ---- streams ----
 *
 * Kernels go to the device that is current at launch; stages on two devices wait for
 * each other by events. */

void stage_doing(const struct stage *s, const char *what)
{
    cuda_doing("%s%s", what, s->where);
}

/* Makes later work on `to` wait for the work now on the stage's main stream. */
static void stage_left(const struct stage *s, cudaStream_t to)
{
    stream_follow(to, s->main, s->left);
}

void stages_join(struct engine *e)
{
    for (int i = 1; i < e->nstages; i++)
        stage_left(&e->stages[i], first_of(e)->main);
    stage_enter(first_of(e));
}

/* From device to device, or between one and pinned memory, as the addresses tell
 * (cudaMemcpyPeerAsync() cannot be captured); `stream` is of either device. */
static void copy(void *to, const void *from, size_t n, cudaStream_t stream)
{
    CUDA(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, stream));
}

void stage_tell(const struct stage *from, const void *bytes, const struct stage *to,
                void *at, size_t n, size_t box)
{
    const struct engine *e = from->e;
    void *via = e->far ? (char *)e->mail + box : NULL;
    if (via)
        copy(via, bytes, n, from->main);
    stage_left(from, to->main);
    copy(at, via ? via : bytes, n, to->main);
}

void stage_put_layer(const char *layer, const char *way, void *stage)
{
    char text[64];
    snprintf(text, sizeof text, "%s %s", layer, way);
    spans_computed(stage, text);
}

void stages_order(struct engine *e)
{
    const struct stage *first = first_of(e);
    for (int i = 1; i < e->nstages; i++) {
        const struct stage *s = &e->stages[i];
        stage_tell(first, first->in, s, s->in, sizeof *s->in,
                   offsetof(struct mail, orders));
    }
}

void stages_describe(struct engine *e)
{
    OWNED char *layers = pipeline_describe(e->job.model, e->nstages);
    int a = e->stages[0].device, b = e->stages[e->nstages - 1].device;
    xappendf(&e->text, ", stages %s", layers);
    if (a == b)
        xappendf(&e->text, " on two streams of a GPU");
    else
        xappendf(&e->text, " on GPUs %d and %d%s", a, b,
                 e->far ? " by way of the host" : "");
}

/* ---- between stages ---- */

enum { ITEMS = LAYERS_BORDERS + 1 };

/* The blocks that set k transfers between these neighbours: activations, with the
 * labels, targets or tokens for the loss, or their gradients. In the same order at both
 * ends. */
static int items_of(const struct stage *s, int k, bool forth, int cut,
                    struct layers_border out[ITEMS])
{
    const struct set *set = &s->sets[k];
    int n = layers_borders(set->net, cut, !forth, out);
    if (forth && has_tokens(s->e))
        out[n++] = (struct layers_border){layers_ends(set->net).x, input_bytes(s->e)};
    else if (forth)
        out[n++] = (struct layers_border){set->t, target_bytes(s->e)};
    return n;
}

size_t stages_box_bytes(const struct engine *e)
{
    struct layers_border items[ITEMS];
    size_t sum = 0;
    int n = items_of(&e->stages[0], 0, true, e->stages[0].to, items);
    for (int i = 0; i < n; i++)
        sum += items[i].bytes * (size_t)e->max_micro;
    return sum;
}

/* Sends n samples of set k, forward or backward; by way of the host they are fetched
 * from its box. */
static void hand_over(struct stage *from, struct stage *to, int k, int n)
{
    struct layers_border mine[ITEMS], theirs[ITEMS];
    bool forth = from->index < to->index;
    int cut = forth ? from->to : from->from;
    int items = items_of(from, k, forth, cut, mine);
    char *box = from->sets[k].box;
    items_of(to, k, forth, cut, theirs);
    stage_left(from, from->away);
    for (int i = 0; i < items; i++) {
        size_t bytes = (size_t)n * mine[i].bytes;
        copy(box ? box : theirs[i].at, mine[i].at, bytes, from->away);
        box += box ? bytes : 0;
    }
    CUDA(cudaEventRecord(from->sets[k].sent, from->away));
}

/* Makes main wait until n samples of set k have arrived from the neighbour. */
static void receive(struct stage *s, const struct stage *from, int k, int n)
{
    struct layers_border items[ITEMS];
    bool forth = from->index < s->index;
    int count = items_of(s, k, forth, forth ? s->from : s->to, items);
    const char *box = from->sets[k].box;
    CUDA(cudaStreamWaitEvent(s->main, from->sets[k].sent, 0));
    for (int i = 0; i < count && box; i++) {
        size_t bytes = (size_t)n * items[i].bytes;
        copy(items[i].at, box, bytes, s->main);
        box += bytes;
    }
    spans_computed(s, NULL);
}

/* Copies samples of the step, from `from` on, into the first stage's input, with their
 * labels or targets; for training or for a test. */
static void gather(struct engine *e, int k, int from, int n, bool learn)
{
    static const struct augment as_they_are = {0};
    struct stage *s = first_of(e);
    struct set *set = &s->sets[k];
    const uint32_t *which = which_of(s->in);
    const struct io_shape *io = &e->job.data->shape;
    const struct layers_ends ends = layers_ends(set->net);
    const struct cuda_map map = {ends.type, n, io->C, io->H, io->W};
    if (has_tokens(e))
        cuda_gather_tokens(s->in, from, n, io->W, ends.x, s->main);
    else if (classifies(e))
        cuda_gather_images(s->in, which, from, map,
                           learn ? e->job.how.augment : as_they_are, e->as_float, ends.x,
                           set->t, s->main);
    else
        cuda_gather_floats(s->in, which, from, n, (int)(input_bytes(e) / sizeof(float)),
                           io->outputs, ends.type, ends.x, set->t, s->main);
}

void stages_loss(struct engine *e, int set, int n, const struct cuda_step *in, int batch,
                 float *grads)
{
    struct stage *s = last_of(e);
    const struct set *at = &s->sets[set];
    const struct layers_ends ends = layers_ends(at->net);
    void *dy = in ? ends.dy : NULL;
    struct cuda_loss l = {.s = in,
                          .batch = batch,
                          .n = n,
                          .K = e->job.data->shape.outputs,
                          .smooth = in ? e->job.how.label_smoothing : 0,
                          .type = ends.type,
                          .scaler = s->scaler,
                          .verdict = s->verdict};
    if (has_tokens(e)) {
        layers_token_loss(at->net, &l, grads);
    } else if (classifies(e)) {
        cuda_class_loss(&l, ends.y, at->t, 0, 0, n, dy, ends.room, s->main);
        cuda_class_losses(&l, ends.room, 0, s->main);
    } else {
        cuda_mse_loss(&l, ends.y, at->t, dy, s->main);
    }
}

/* ---- tied weights ----
 *
 * The last stage's logits are products with a copy of the embedding's weight, which
 * begins the first stage's block. The gradient of the copy, summed over the
 * micro-batches, becomes part of the weight's in the last one. */

/* The offset in the model's block that stands for the copy in the last stage's. */
static size_t tied_at(const struct engine *e)
{
    return e->job.model->count;
}

void stages_tie(struct engine *e)
{
    const struct stage *first = first_of(e), *last = last_of(e);
    size_t bytes = last->part.tied * sizeof(float);
    if (bytes == 0)
        return;
    stage_tell(first, first->weights, last, place_in(last, last->weights, tied_at(e)),
               bytes, offsetof(struct mail, tied));
}

/* The logits begin the gradient of the embedding's weight, which is the first stage's,
 * in a block for this micro-batch. */
static void begin_tied(const struct stage *s, float *grads)
{
    const struct stage *last = last_of(s->e);
    size_t bytes = last->part.tied * sizeof(float);
    if (bytes == 0)
        return;
    if (s->last)
        stage_tell(last, place_in(last, last->grads, tied_at(s->e)), s, grads, bytes,
                   offsetof(struct mail, tied));
    else
        CUDA(cudaMemsetAsync(grads, 0, bytes, s->main));
}

/* ---- the schedule ---- */

/* A micro-batch in flight: k samples, from `from` on, in one set of each stage. */
struct flight {
    int from, k, set;
    int batch; /* its number: selects dropout's random numbers; sums are cleared for the
                  first */
};

static void go_forward(struct stage *s, const struct flight *f, bool learn)
{
    struct engine *e = s->e;
    stage_enter(s);
    stage_doing(s, "the batch");
    if (s != first_of(e)) {
        receive(s, s - 1, f->set, f->k);
    } else {
        if (f->k > 0)
            gather(e, f->set, f->from, f->k, learn);
        spans_mark(s, TRACE_DATA, "batch");
    }
    layers_forward(s->sets[f->set].net, f->k, learn ? s->in : NULL, f->batch);
    if (s != last_of(e))
        hand_over(s, s + 1, f->set, f->k);
}

/* At the last stage computes the loss first. */
static void go_back(struct stage *s, const struct flight *f, bool into_extra)
{
    struct engine *e = s->e;
    float *grads = into_extra ? s->extra : s->grads;
    stage_enter(s);
    stage_doing(s, "the loss");
    if (s != last_of(e)) {
        begin_tied(s, grads);
        receive(s, s + 1, f->set, f->k);
    } else {
        if (f->k > 0)
            stages_loss(e, f->set, f->k, s->in, f->batch, grads);
        if (s->part.tied > 0)
            sums_ready(tied_at(e), s->part.tied, s);
        spans_computed(s, "loss");
    }
    layers_backward(s->sets[f->set].net, f->k, grads);
    if (s != first_of(e))
        hand_over(s, s - 1, f->set, f->k);
}

static struct flight flight_of(const struct engine *e, int i, int k, int parts, int m)
{
    const struct micro_batch b = pipeline_micro_batch(i, k, parts, m);
    return (struct flight){i * e->job.how.batch_size + b.from, b.n, m % e->nstages,
                           b.number};
}

void stages_put_batch(struct engine *e, int i, int n, int batches)
{
    int k = engine_batch(&e->job, n, i), parts = pipeline_micro_batches(k, e->micro);
    int last = e->nstages - 1;
    for (int round = 0; round < parts + last; round++) {
        for (int at = 0; at <= last && at <= round; at++) {
            const struct flight f = flight_of(e, i, k, parts, round - at);
            if (round - at < parts)
                go_forward(&e->stages[at], &f, true);
        }
        for (int m = round - last, at = last; m >= 0 && at >= 0; at--) {
            const struct flight f = flight_of(e, i, k, parts, m);
            struct stage *s = &e->stages[at];
            s->first = i == 0 && m == 0;
            s->last = i == batches - 1 && m == parts - 1;
            s->none = f.k == 0;
            /* A micro-batch without samples contributes zeros: to the step's gradients if
             * these are zero as well, else to `extra`. */
            go_back(s, &f, !s->first && n > 0);
        }
    }
    stage_enter(first_of(e));
}

void stages_forward(struct engine *e, int from, int k, bool learn, int batch)
{
    const struct flight f = {.from = from, .k = k, .set = 0, .batch = batch};
    for (int s = 0; s < e->nstages; s++)
        go_forward(&e->stages[s], &f, learn);
}

/* ---- plans ---- */

void stages_sizes(const struct engine *e, int n, uint8_t *sizes)
{
    int parts = pipeline_micro_batches(n, e->micro);
    for (int m = 0; m < parts; m++)
        sizes[flight_of(e, 0, n, parts, m).k] = 1;
}

/* Plans allocate memory, which is not allowed during capture. */
void stages_warm_up(struct engine *e, int n)
{
    int parts = pipeline_micro_batches(n, e->micro);
    for (int i = 1; i < e->nstages; i++) /* a step may be in flight */
        stage_left(first_of(e), e->stages[i].main);
    for (EACH_STAGE(s, e)) {
        stage_enter(s);
        for (int m = 0; m < parts; m++)
            layers_warm_up(s->sets[0].net, flight_of(e, 0, n, parts, m).k, s->grads);
    }
    stages_join(e);
}
