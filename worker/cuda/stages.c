/* worker/cuda/stages.c - see engine_impl.h: a batch on its way through the stages
 *
 * Stages are on the rank's two devices, or both on its only one, and take turns as
 * worker/pipeline_schedule.h has it: the host puts each turn on its stage's main stream,
 * and what one stage hands over to the other goes by a third stream, so that the next
 * turn need not wait for it.
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

static const char *const what = "a batch";

/* From device to device, which the addresses identify (cudaMemcpyPeerAsync() cannot be
 * captured), or between one and pinned memory; `stream` is of either device. */
static int copy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                cudaStream_t stream, struct ddp_err *err)
{
    return check_cuda(cudaMemcpyAsync(to, from, n, kind, stream), what, err);
}

int stage_tell(const struct stage *from, const void *bytes, const struct stage *to,
               void *at, size_t n, size_t box, struct ddp_err *err)
{
    const struct engine *e = from->e;
    void *via = e->far ? (char *)e->mail + box : NULL;
    if (via)
        TRY(copy(via, bytes, n, cudaMemcpyDeviceToHost, from->main, err));
    TRY(stage_left(from, to->main, err));
    return via ? copy(at, via, n, cudaMemcpyHostToDevice, to->main, err)
               : copy(at, bytes, n, cudaMemcpyDefault, to->main, err);
}

int stage_put_layer(const char *layer, const char *way, void *stage, struct ddp_err *err)
{
    char text[64];
    struct stage *s = stage;
    snprintf(text, sizeof text, "'%s' %s", layer, way);
    TRY(stage_launched(s, text, err));
    snprintf(text, sizeof text, "%s %s", layer, way);
    return spans_computed(s, text, err);
}

int stages_order(struct engine *e, struct ddp_err *err)
{
    const struct stage *first = first_of(e);
    for (int i = 1; i < e->nstages; i++) {
        const struct stage *s = &e->stages[i];
        TRY(stage_tell(first, first->in, s, s->in, sizeof *s->in,
                       offsetof(struct mail, orders), err));
    }
    return 0;
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

/* One end of a transfer. */
struct item {
    void *at;
    size_t bytes; /* per sample */
};

enum { ITEMS = LAYERS_BORDERS + 1 };

/* The blocks that set k transfers between these neighbours: activations, with the
 * labels, targets or tokens for the loss, or their gradients. In the same order at both
 * ends. */
static int items_of(const struct stage *s, int k, bool forth, int cut,
                    struct item out[ITEMS])
{
    const struct set *set = &s->sets[k];
    struct layers_border borders[LAYERS_BORDERS];
    int n = layers_borders(set->net, cut, borders);
    for (int i = 0; i < n; i++)
        out[i] = (struct item){forth ? borders[i].y : borders[i].dy, borders[i].bytes};
    if (forth && has_tokens(s->e))
        out[n++] = (struct item){layers_ends(set->net).x, input_bytes(s->e)};
    else if (forth)
        out[n++] = (struct item){set->t, target_bytes(s->e)};
    return n;
}

size_t stages_box_bytes(const struct engine *e)
{
    struct item items[ITEMS];
    size_t sum = 0;
    int n = items_of(&e->stages[0], 0, true, e->stages[0].to, items);
    for (int i = 0; i < n; i++)
        sum += items[i].bytes * (size_t)e->max_micro;
    return sum;
}

/* Sends n samples of set k, forward or backward; by way of the host they are fetched
 * from its box. */
static int hand_over(struct stage *from, struct stage *to, int k, int n,
                     struct ddp_err *err)
{
    struct item mine[ITEMS], theirs[ITEMS];
    bool forth = from->index < to->index;
    int cut = forth ? from->to : from->from;
    int items = items_of(from, k, forth, cut, mine);
    char *box = from->sets[k].box;
    items_of(to, k, forth, cut, theirs);
    TRY(stage_left(from, from->away, err));
    for (int i = 0; i < items; i++) {
        size_t bytes = (size_t)n * mine[i].bytes;
        if (from->e->far)
            TRY(copy(box, mine[i].at, bytes, cudaMemcpyDeviceToHost, from->away, err));
        else
            TRY(copy(theirs[i].at, mine[i].at, bytes, cudaMemcpyDefault, from->away,
                     err));
        box += from->e->far ? bytes : 0;
    }
    return check_cuda(cudaEventRecord(from->sets[k].sent, from->away), what, err);
}

/* Makes main wait until n samples of set k have arrived from the neighbour. */
static int receive(struct stage *s, const struct stage *from, int k, int n,
                   struct ddp_err *err)
{
    struct item items[ITEMS];
    bool forth = from->index < s->index;
    int count = items_of(s, k, forth, forth ? s->from : s->to, items);
    const char *box = from->sets[k].box;
    TRY(check_cuda(cudaStreamWaitEvent(s->main, from->sets[k].sent, 0), what, err));
    for (int i = 0; i < count && s->e->far; i++) {
        size_t bytes = (size_t)n * items[i].bytes;
        TRY(copy(items[i].at, box, bytes, cudaMemcpyHostToDevice, s->main, err));
        box += bytes;
    }
    return spans_computed(s, NULL, err);
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

int stages_loss(struct engine *e, int set, int n, const struct cuda_step *in, int batch,
                float *grads, struct ddp_err *err)
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
                          .head = head_of(s),
                          .own = own_of(s)};
    if (has_tokens(e)) {
        const struct layers_plan *plan = layers_plan(at->net, n, err);
        return plan ? layers_token_loss(at->net, plan, &l, grads, err) : -1;
    }
    if (classifies(e)) {
        cuda_class_loss(&l, ends.y, at->t, 0, 0, n, dy, ends.room, s->main);
        cuda_class_losses(&l, ends.room, 0, s->main);
    } else {
        cuda_mse_loss(&l, ends.y, at->t, dy, s->main);
    }
    return 0;
}

/* ---- tied weights ----
 *
 * The last stage's logits are products with a copy of the embedding's weight, which
 * begins the first stage's block. The gradient of the copy, summed over the
 * micro-batches, becomes part of the weight's in the last one. */

/* The offset in the model's block that stands for the copy in the last stage's. */
static size_t tied_at(const struct engine *e)
{
    return model_param_count(e->job.model);
}

int stages_tie(struct engine *e, struct ddp_err *err)
{
    const struct stage *first = first_of(e), *last = last_of(e);
    size_t bytes = last->part.tied * sizeof(float);
    if (bytes == 0)
        return 0;
    return stage_tell(first, first->weights, last,
                      place_in(last, last->weights, tied_at(e)), bytes,
                      offsetof(struct mail, tied), err);
}

/* The logits begin the gradient of the embedding's weight, which is the first stage's,
 * in a block for this micro-batch. */
static int begin_tied(const struct stage *s, float *grads, struct ddp_err *err)
{
    const struct stage *last = last_of(s->e);
    size_t bytes = last->part.tied * sizeof(float);
    if (bytes == 0)
        return 0;
    if (!s->last)
        return check_cuda(cudaMemsetAsync(grads, 0, bytes, s->main), what, err);
    return stage_tell(last, place_in(last, last->grads, tied_at(s->e)), s, grads, bytes,
                      offsetof(struct mail, tied), err);
}

/* ---- the schedule ---- */

/* A micro-batch in flight: k samples, from `from` on, in one set of each stage. */
struct flight {
    int from, k, set;
    int batch; /* its number: selects dropout's random numbers; sums are cleared for the
                  first */
};

/* Makes the stage's device current; returns the plan for this many samples, or NULL. */
static struct layers_plan *begin_turn(struct stage *s, const struct flight *f,
                                      struct ddp_err *err)
{
    return stage_enter(s, err) == 0 ? layers_plan(s->sets[f->set].net, f->k, err) : NULL;
}

static int go_forward(struct stage *s, const struct flight *f, bool learn,
                      struct ddp_err *err)
{
    struct engine *e = s->e;
    struct layers *net = s->sets[f->set].net;
    struct layers_plan *plan = begin_turn(s, f, err);
    if (!plan)
        return -1;
    if (s != first_of(e)) {
        TRY(receive(s, s - 1, f->set, f->k, err));
    } else {
        if (f->k > 0)
            gather(e, f->set, f->from, f->k, learn);
        TRY(stage_launched(s, "the batch", err));
        TRY(spans_mark(s, TRACE_DATA, "batch", err));
    }
    TRY(layers_forward(net, plan, learn ? s->in : NULL, f->batch, err));
    return s == last_of(e) ? 0 : hand_over(s, s + 1, f->set, f->k, err);
}

/* At the last stage computes the loss first. */
static int go_back(struct stage *s, const struct flight *f, bool into_extra,
                   struct ddp_err *err)
{
    struct engine *e = s->e;
    struct layers *net = s->sets[f->set].net;
    float *grads = into_extra ? s->extra : s->grads;
    struct layers_plan *plan = begin_turn(s, f, err);
    if (!plan)
        return -1;
    if (s != last_of(e)) {
        TRY(begin_tied(s, grads, err));
        TRY(receive(s, s + 1, f->set, f->k, err));
    } else {
        if (f->k > 0)
            TRY(stages_loss(e, f->set, f->k, s->in, f->batch, grads, err));
        if (s->part.tied > 0)
            TRY(sums_ready(tied_at(e), s->part.tied, s, err));
        TRY(stage_launched(s, "the loss", err));
        TRY(spans_computed(s, "loss", err));
    }
    TRY(layers_backward(net, plan, grads, err));
    return s == first_of(e) ? 0 : hand_over(s, s - 1, f->set, f->k, err);
}

static struct flight flight_of(const struct engine *e, int i, int k, int parts, int m)
{
    const struct micro_batch b = pipeline_micro_batch(i, k, parts, m);
    return (struct flight){i * e->job.how.batch_size + b.from, b.n, m % e->nstages,
                           b.number};
}

int stages_put_batch(struct engine *e, int i, int n, int batches, struct ddp_err *err)
{
    int k = engine_batch(&e->job, n, i), parts = pipeline_micro_batches(k, e->micro);
    int last = e->nstages - 1;
    for (int round = 0; round < parts + last; round++) {
        for (int at = 0; at <= last && at <= round; at++) {
            const struct flight f = flight_of(e, i, k, parts, round - at);
            if (round - at < parts)
                TRY(go_forward(&e->stages[at], &f, true, err));
        }
        for (int m = round - last, at = last; m >= 0 && at >= 0; at--) {
            const struct flight f = flight_of(e, i, k, parts, m);
            struct stage *s = &e->stages[at];
            s->first = i == 0 && m == 0;
            s->last = i == batches - 1 && m == parts - 1;
            s->none = f.k == 0;
            /* A micro-batch without samples contributes zeros: to the step's gradients if
             * these are zero as well, else to `extra`. */
            TRY(go_back(s, &f, !s->first && n > 0, err));
        }
    }
    return stage_enter(first_of(e), err);
}

int stages_forward(struct engine *e, int from, int k, bool learn, int batch,
                   struct ddp_err *err)
{
    const struct flight f = {.from = from, .k = k, .set = 0, .batch = batch};
    for (int s = 0; s < e->nstages; s++)
        TRY(go_forward(&e->stages[s], &f, learn, err));
    return 0;
}

/* ---- plans ---- */

void stages_sizes(const struct engine *e, int n, uint8_t *sizes)
{
    int parts = pipeline_micro_batches(n, e->micro);
    for (int m = 0; m < parts; m++)
        sizes[flight_of(e, 0, n, parts, m).k] = 1;
}

/* Plans allocate memory, which is not allowed during capture. */
static int warm_up(struct stage *s, int k, struct ddp_err *err)
{
    struct layers *net = s->sets[0].net;
    struct layers_plan *plan = stage_enter(s, err) < 0 ? NULL : layers_plan(net, k, err);
    return plan ? layers_warm_up(net, plan, s->grads, err) : -1;
}

int stages_warm_up(struct engine *e, int n, struct ddp_err *err)
{
    int parts = pipeline_micro_batches(n, e->micro);
    if (stages_fork(e, err) < 0) /* a step may be in flight */
        return -1;
    for (int s = 0; s < e->nstages; s++) {
        for (int m = 0; m < parts; m++)
            TRY(warm_up(&e->stages[s], flight_of(e, 0, n, parts, m).k, err));
    }
    return stages_join(e, err);
}
