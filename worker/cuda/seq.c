/* worker/cuda/seq.c - layers of tokens on a device, and their loss; see layers.h
 *
 * An activation is [n, T, C]: a row of C features per token. The products are
 * product.c's, the kernels seq.cu's and attention.cu's.
 *
 * Logits are products with the embedding's weight, a row of 50,257 per token. They are
 * computed for some rows at a time, replaced by their gradients and used at once, as
 * in worker/nn/head.c. Their products belong to two additional layers after the
 * model's own.
 */
#include "worker/cuda/layers_impl.h"

#include <stdio.h>

#ifndef LOGITS_AT_ONCE
#define LOGITS_AT_ONCE (64 << 20) /* approximately; a test has fewer */
#endif

static struct cuda_map rows_of(const struct layers *net, const struct layer *l, int n)
{
    return (struct cuda_map){net->type, n, l->map.C, (int)l->rows, 1};
}

static struct cuda_attention attention_of(const struct layers *net, const struct layer *l,
                                          int n)
{
    return (struct cuda_attention){
        .type = net->type,
        .n = n,
        .T = (int)l->rows,
        .heads = l->spec->size,
        .kv_heads = l->spec->kv_heads,
        .D = head_size(l),
        .dropout = l->spec->dropout,
        .s = net->settings.dropout && l->spec->dropout > 0 ? net->step : NULL,
        .batch = net->batch,
        .layer = (int)(l - net->layers),
        .layers = model_dropout_streams(net->host)};
}

/* Floats for the softmax sums, and as many for backward. */
static float *sums_of(const struct layers *net, const struct layer *l, int which)
{
    return l->saved + (size_t)which * (size_t)net->settings.max_batch * l->rows *
                          (size_t)l->spec->size;
}

/* The logits have started the weight's gradient, unless they have their own. */
void embed_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
               bool back)
{
    struct cuda_map map = rows_of(net, l, p->n);
    if (!back) {
        cuda_embed(net->x, weights_of(net, l->weight), weights_of(net, l->bias), map,
                   l->y, net->stream);
        return;
    }
    float *dof = grads_of(net, l->weight);
    if (model_untied(net->host))
        CUDA(cudaMemsetAsync(dof, 0, l->weight->count * sizeof *dof, net->stream));
    cuda_embed_back(net->x, net->slots[l->slot], map, dof, grads_of(net, l->bias),
                    net->stream);
}

void row_norm_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
                  bool back)
{
    struct cuda_row_norm norm = {.map = rows_of(net, l, p->n),
                                 .w = weights_of(net, l->weight),
                                 .bias = weights_of(net, l->bias),
                                 .kept = l->saved,
                                 .room = net->room,
                                 .eps = l->spec->eps,
                                 .rms = l->spec->kind == LAYER_RMS_NORM};
    if (back)
        cuda_row_norm_back(&norm, input_of(net, l), net->slots[l->slot],
                           grads_of(net, l->weight), grads_of(net, l->bias),
                           gradient_of(net, l->in), l->adds, net->stream);
    else
        cuda_row_norm(&norm, input_of(net, l), l->y, net->stream);
}

void activation_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
                    bool back)
{
    cuda_activation(rows_of(net, l, p->n), model_activation(l->spec, l->map.C),
                    input_of(net, l), back ? net->slots[l->slot] : NULL,
                    back ? gradient_of(net, l->in) : l->y, net->stream);
}

void rotary_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
                bool back)
{
    const void *from = back ? net->slots[l->slot] : input_of(net, l);
    cuda_rotary(attention_of(net, l, p->n), l->saved, from,
                back ? gradient_of(net, l->in) : l->y, back, net->stream);
}

/* ---- attention ----
 *
 * In bf16 and fp16, without dropout, by an engine of cuDNN. Our kernels come last in the
 * list: they take all that cuDNN does not. */

static bool cudnn_attends(const struct layers *net, const struct layer *l)
{
    enum { NO_FILL = 91000 }; /* since this version it sets sums to zero itself */
    bool drops = net->settings.dropout && l->spec->dropout > 0;
    return net->type != CUDA_F32 && !drops && cudnnGetVersion() >= NO_FILL;
}

static void attention_key(const struct layers *net, const struct layer *l, int n,
                          enum pass pass, char *text, size_t size)
{
    const struct cuda_attention a = attention_of(net, l, n);
    snprintf(text, size, "attention%s %d %d %d/%dx%d %s%s%s",
             pass == PASS_INPUTS ? " back" : "", n, a.T, a.heads, a.kv_heads, a.D,
             precision_names[net->settings.precision],
             net->settings.deterministic ? " deterministic" : "",
             cudnn_attends(net, l) ? "" : " own");
}

static void attention_describe(struct layers *net, const struct layer *l,
                               struct layer_plan *p, enum pass pass)
{
    const struct cuda_attention a = attention_of(net, l, p->n);
    if (cudnn_attends(net, l))
        p->products[pass].graph = attention_graph_make(net->dnn, &a, pass == PASS_INPUTS,
                                                       net->settings.deterministic);
}

static int attention_build(struct layers *net, const struct layer *l,
                           const struct layer_plan *p, enum pass pass,
                           struct algorithm *out)
{
    struct dnn_graph *g = p->products[pass].graph;
    int ours = g ? g->nconfigs : 0;
    bool too_large = false;
    if (out->place < ours)
        return dnn_graph_plan(g, net->dnn, out->place, net->workspace_bytes, &out->plan);
    out->plan = NULL;
    if (out->place > ours) {
        cuda_fail("'%s': no kernel works", l->spec->name);
        return -1;
    }
    for (int i = 0; i < ours; i++)
        too_large |= g->plans[i] != NULL;
    /* while there is none yet, try a larger workspace first */
    if (!too_large || net->workspace || net->workspace_bytes >= WORKSPACE_MOST)
        return 1;
    cuda_fail("'%s' needs a larger workspace", l->spec->name);
    return -1;
}

static void attention_play(struct layers *net, const struct layer *l,
                           const struct layer_plan *p, enum pass pass)
{
    const struct cuda_attention a = attention_of(net, l, p->n);
    bool back = pass == PASS_INPUTS;
    void *qkv = input_of(net, l), *dy = back ? net->slots[l->slot] : NULL;
    void *dqkv = back ? gradient_of(net, l->in) : NULL;
    float *lse = sums_of(net, l, 0), *dots = sums_of(net, l, 1);
    const struct attention_memory memory = {qkv, l->y, lse, dy, dqkv, dots, net->dq};
    if (p->how[pass].plan)
        attention_graph_play(p->how[pass].plan, net->dnn, &a, &memory, net->workspace);
    else if (back)
        cuda_attention_back(a, qkv, l->y, lse, dy, dqkv, dots, net->stream);
    else
        cuda_attention(a, qkv, l->y, lse, net->stream);
}

const struct products attention_products = {attention_key, attention_describe,
                                            attention_build, attention_play};

void attention_run(struct layers *net, const struct layer *l, const struct layer_plan *p,
                   bool back)
{
    attention_play(net, l, p, back ? PASS_INPUTS : PASS_FORWARD);
}

/* ---- the logits ---- */

/* What comes before the logits. */
static const struct layer *last_of(const struct layers *net)
{
    return &net->layers[net->nlayers - 1 - model_untied(net->host)];
}

/* Rows of a piece. Each piece begins at an address that is a multiple of 256 bytes:
 * product.c promises cuBLASLt this alignment of operands. */
static size_t logits_most(const struct layers *net)
{
    size_t all = (size_t)net->settings.max_batch * net->layers[0].rows;
    size_t piece = LOGITS_AT_ONCE / (size_t)net->host->io.outputs;
    size_t row = last_of(net)->outputs / last_of(net)->rows * type_size(net->type);
    size_t aligned = row & -row, step = aligned < 256 ? 256 / aligned : 1;
    piece = piece < 64 ? 64 : piece;
    piece = piece < step ? step : piece - piece % step;
    return all < piece ? all : piece;
}

/* A head is kept in a thread's registers. */
static void check_heads(const struct layers *net)
{
    for (int i = 0; i < net->nlayers; i++) {
        const struct layer *l = &net->layers[i];
        int D = l->spec->kind == LAYER_ATTENTION ? head_size(l) : 0;
        if (D > CUDA_HEAD_MOST)
            cuda_fail("'%s' has heads of %d numbers, the cuda engine takes %d at "
                      "most: try more heads, or --engine cpu",
                      l->spec->name, D, CUDA_HEAD_MOST);
    }
}

void seq_make(struct layers *net, struct resources *memory)
{
    static char name[] = "logits";
    static const struct layer_spec spec = {.kind = LAYER_LINEAR, .name = name};
    const struct layer *last = last_of(net);
    int end = (int)(last - net->layers);
    const struct layer *weight = &net->layers[model_untied(net->host) ? end + 1 : 0];
    size_t V = (size_t)net->host->io.outputs, C = last->outputs / last->rows;
    size_t all = (size_t)net->settings.max_batch * last->rows;
    struct layer logits = {.spec = &spec,
                           .weight = weight->weight,
                           .in = end,
                           .shortcut = -1,
                           .wide = {(int)V, 1, 1},
                           .inputs = C,
                           .before = V,
                           .outputs = V,
                           .rows = 1,
                           .type = CUDA_F32,
                           .slot = MODEL_MAX_SLOTS};
    check_heads(net);
    net->piece = logits_most(net);
    if (!net->logits)
        return;
    logits.y = device_alloc(memory, "logits", net->piece * V * sizeof(float));
    net->losses = device_alloc(memory, "logits", 2 * all * sizeof(float));
    net->slots[MODEL_MAX_SLOTS] =
        net->type == CUDA_F32
            ? logits.y /* in place */
            : device_alloc(memory, "logits", net->piece * V * type_size(net->type));
    net->layers[net->nlayers] = net->layers[net->nlayers + 1] = logits;
}

void layers_token_loss(struct layers *net, const struct cuda_loss *l, float *grads)
{
    const struct layers_plan *p = layers_plan(net, l->n);
    int all = l->n * (int)net->layers[0].rows, T = (int)net->layers[0].rows, rows;
    net->grads = grads;
    for (int from = 0; p && from < all; from += rows) {
        int i = net->nlayers + (all - from < (int)net->piece);
        const struct layer *logits = &net->layers[i];
        const struct layer_plan *plan = &p->layers[i];
        rows = plan->n;
        linear_rows(net, logits, plan, PASS_FORWARD, (size_t)from, false);
        cuda_class_loss(l, logits->y, net->x, T, from, rows,
                        l->s ? net->slots[logits->slot] : NULL, net->losses, net->stream);
        for (enum pass pass = PASS_WEIGHTS; l->s && pass < PASSES; pass++)
            linear_rows(net, logits, plan, pass, (size_t)from, from > 0);
    }
    cuda_class_losses(l, net->losses, T, net->stream);
}
