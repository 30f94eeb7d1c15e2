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

#include "common/err.h"

enum { PIECE = 64 << 20 }; /* logits at a time, approximately */

static struct cuda_rows rows_of(const struct layers *net, const struct layer *l, int n)
{
    return (struct cuda_rows){net->type, n, (int)l->rows, (int)(l->outputs / l->rows)};
}

static struct cuda_layer_norm norm_of(const struct layers *net, const struct layer *l,
                                      int n)
{
    return (struct cuda_layer_norm){.rows = rows_of(net, l, n),
                                    .w = net->weights + place_of(net, l->weight),
                                    .bias = net->weights + place_of(net, l->bias),
                                    .kept = l->saved,
                                    .room = net->room};
}

static struct cuda_attention attention_of(const struct layers *net, const struct layer *l,
                                          int n)
{
    struct cuda_rows r = rows_of(net, l, n);
    return (struct cuda_attention){net->type, n, r.T, l->spec->size, r.C / l->spec->size};
}

/* Floats for the softmax sums, and as many for backward. */
static float *sums_of(const struct layers *net, const struct layer *l, int which)
{
    return l->saved + (size_t)which * (size_t)net->settings.max_batch * l->rows *
                          (size_t)l->spec->size;
}

static void embed(const struct layers *net, const struct layer *l, int n)
{
    cuda_embed(net->x, net->weights + place_of(net, l->weight),
               net->weights + place_of(net, l->bias), rows_of(net, l, n), l->y,
               net->stream);
}

/* The logits have started the weight's gradient. */
static void embed_back(const struct layers *net, const struct layer *l, int n)
{
    cuda_embed_back(net->x, net->slots[l->slot], rows_of(net, l, n),
                    net->grads + place_of(net, l->weight),
                    net->grads + place_of(net, l->bias), net->stream);
}

static void layer_norm(const struct layers *net, const struct layer *l, int n)
{
    struct cuda_layer_norm p = norm_of(net, l, n);
    cuda_layer_norm(&p, input_of(net, l), l->y, net->stream);
}

static void layer_norm_back(const struct layers *net, const struct layer *l, int n)
{
    struct cuda_layer_norm p = norm_of(net, l, n);
    cuda_layer_norm_back(&p, input_of(net, l), net->slots[l->slot],
                         net->grads + place_of(net, l->weight),
                         net->grads + place_of(net, l->bias), gradient_of(net, l->in),
                         l->adds, net->stream);
}

static void gelu(const struct layers *net, const struct layer *l, int n)
{
    cuda_gelu(input_of(net, l), (int64_t)l->outputs * n, net->type, l->y, net->stream);
}

static void gelu_back(const struct layers *net, const struct layer *l, int n)
{
    cuda_gelu_back(input_of(net, l), net->slots[l->slot], (int64_t)l->outputs * n,
                   net->type, gradient_of(net, l->in), net->stream);
}

static void attention(const struct layers *net, const struct layer *l, int n)
{
    cuda_attention(attention_of(net, l, n), input_of(net, l), l->y, sums_of(net, l, 0),
                   net->stream);
}

static void attention_back(const struct layers *net, const struct layer *l, int n)
{
    cuda_attention_back(attention_of(net, l, n), input_of(net, l), l->y,
                        sums_of(net, l, 0), net->slots[l->slot], gradient_of(net, l->in),
                        sums_of(net, l, 1), net->stream);
}

static const struct {
    void (*forward)(const struct layers *net, const struct layer *l, int n);
    void (*back)(const struct layers *net, const struct layer *l, int n);
} kinds[LAYER_KINDS] = {[LAYER_EMBED] = {embed, embed_back},
                        [LAYER_LAYER_NORM] = {layer_norm, layer_norm_back},
                        [LAYER_GELU] = {gelu, gelu_back},
                        [LAYER_ATTENTION] = {attention, attention_back}};

static int tokens_forward(struct layers *net, int i, const struct layer_plan *p,
                          bool learn, struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    kinds[l->spec->kind].forward(net, l, p->n);
    return 0;
}

static int tokens_back(struct layers *net, int i, const struct layer_plan *p, float scale,
                       struct ddp_err *err)
{
    const struct layer *l = &net->layers[i];
    kinds[l->spec->kind].back(net, l, p->n);
    return 0;
}

const struct layer_op layer_tokens = {NULL, tokens_forward, tokens_back};

/* ---- the logits ---- */

static size_t logits_most(const struct layers *net)
{
    size_t all = (size_t)net->settings.max_batch * net->layers[0].rows;
    size_t piece = PIECE / (size_t)net->settings.io.outputs;
    piece = piece < 64 ? 64 : piece;
    return all < piece ? all : piece;
}

int logits_rows(const struct layers *net, int i, int n)
{
    size_t all = (size_t)n * net->layers[0].rows, most = logits_most(net);
    return (int)(i == net->nlayers ? (all < most ? 0 : most) : all % most);
}

/* A head is kept in a thread's registers. */
static int check_heads(const struct layers *net, struct ddp_err *err)
{
    for (int i = 0; i < net->nlayers; i++) {
        const struct layer *l = &net->layers[i];
        int D = l->spec->kind == LAYER_ATTENTION ? attention_of(net, l, 1).D : 0;
        if (D > CUDA_HEAD_MOST)
            return err_set(err,
                           "'%s' has heads of %d numbers, the cuda engine takes %d at "
                           "most: try more heads, or --engine cpu",
                           l->spec->name, D, CUDA_HEAD_MOST);
    }
    return 0;
}

int seq_make(struct layers *net, struct device_memory *memory, struct ddp_err *err)
{
    static char name[] = "logits";
    static const struct layer_spec spec = {.kind = LAYER_LINEAR, .name = name};
    const struct layer *embed = &net->layers[0], *last = &net->layers[net->nlayers - 1];
    size_t V = (size_t)net->settings.io.outputs, C = last->outputs / last->rows;
    size_t bytes = (size_t)net->settings.max_batch * (last->rows + 1) * sizeof(uint32_t);
    size_t rows = logits_most(net), all = (size_t)net->settings.max_batch * last->rows;
    struct layer logits = {.spec = &spec,
                           .op = &layer_linear,
                           .weight = embed->weight,
                           .in = net->nlayers - 1,
                           .shortcut = -1,
                           .K = (int)V,
                           .inputs = C,
                           .outputs = V,
                           .rows = 1,
                           .slot = MODEL_MAX_SLOTS};
    TRY(check_heads(net, err));
    TRY(device_alloc(memory, "logits", rows * V * sizeof(float), &logits.y, err));
    TRY(device_alloc(memory, "logits", 2 * all * sizeof(float), &net->losses, err));
    if (net->type != CUDA_F32)
        TRY(device_alloc(memory, "logits", rows * V * type_size(net->type),
                         &net->slots[MODEL_MAX_SLOTS], err));
    if (net->type == CUDA_F32) /* in place */
        net->slots[MODEL_MAX_SLOTS] = logits.y;
    net->layers[net->nlayers] = net->layers[net->nlayers + 1] = logits;
    /* before the first batch, layers are warmed up with valid tokens */
    return check_cuda(cudaMemsetAsync(net->x, 0, bytes, net->stream), "steps", err);
}

int layers_token_loss(struct layers *net, const struct layers_plan *p,
                      const struct cuda_loss *l, float *grads, struct ddp_err *err)
{
    int all = l->n * (int)net->layers[0].rows, T = (int)net->layers[0].rows, rows;
    net->grads = grads;
    for (int from = 0; from < all; from += rows) {
        int i = net->nlayers + (all - from < (int)logits_most(net));
        const struct layer_plan *plan = &p->layers[i];
        rows = plan->n;
        TRY(linear_rows(net, i, plan, PASS_FORWARD, &plan->how[PASS_FORWARD],
                        (size_t)from, false, err));
        if (!net->bare)
            cuda_token_loss(l, net->layers[i].y, net->x, T, from, rows,
                            l->s ? gradient_of(net, i) : NULL, net->losses, net->stream);
        for (enum pass pass = PASS_WEIGHTS; l->s && pass < PASSES; pass++)
            TRY(linear_rows(net, i, plan, pass, &plan->how[pass], (size_t)from, from > 0,
                            err));
    }
    if (!net->bare)
        cuda_token_losses(l, net->losses, T, net->stream);
    return 0;
}
