/* worker/nn/ops_seq.c - the ops of sequence layers: parameters, shapes, forward,
 * backward
 *
 * y is [n, W, features]: a row of features for each token of a sample.
 */
#include "common/err.h"
#include "worker/nn/model_impl.h"

#include <math.h>
#include <string.h>

static int rows_of(const struct model *m, const struct batch *b)
{
    return b->n * m->io.W;
}

/* A row for each token. */
static void give_rows(const struct model *m, struct layer *l, int features, double work)
{
    l->flow = FLOW_ROWS;
    l->map = (struct map_shape){features, 1, 1};
    l->floats = (size_t)m->io.W * (size_t)features;
    l->work = m->io.W * work;
}

static void init_normal(struct model *m, const struct param *p, float deviation,
                        uint64_t key)
{
    for (size_t i = p->offset; i < p->offset + p->count; i++)
        m->weights[i] = model_normal(key, i) * deviation;
}

static void init_constant(struct model *m, const struct param *p, float value)
{
    for (size_t i = 0; i < p->count; i++)
        m->weights[p->offset + i] = value;
}

/* ---- embeddings of tokens and positions ---- */

static int add_embed(struct model *m, int i, struct map_shape in, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    int C = l->spec->outputs;
    l->weight =
        model_add_param(m, l->spec->name, "weight", 2, (int[4]){m->io.outputs, C});
    l->bias = model_add_param(m, "wpe", "weight", 2, (int[4]){m->io.W, C});
    give_rows(m, l, C, C);
    return 0;
}

static void init_embed(struct model *m, const struct layer *l, uint64_t key)
{
    init_normal(m, l->weight, 0.02f, key);
    init_normal(m, l->bias, 0.02f, key);
}

static const uint32_t *token_at(const struct model *m, const struct batch *b, int row)
{
    size_t W = (size_t)m->io.W;
    return b->tokens + (size_t)row / W * (W + 1) + (size_t)row % W;
}

static void embed(struct model *m, struct layer *l, const struct batch *b, bool learn)
{
    size_t C = (size_t)l->spec->outputs;
    const float *of = m->weights + l->weight->offset, *at = m->weights + l->bias->offset;
    for (int row = 0; row < rows_of(m, b); row++) {
        const float *token = of + *token_at(m, b, row) * C;
        const float *place = at + (size_t)(row % m->io.W) * C;
        float *y = l->y + (size_t)row * C;
        for (size_t c = 0; c < C; c++)
            y[c] = token[c] + place[c];
    }
}

/* Adds to the weight's gradient, which the head has computed before. */
static void embed_back(struct model *m, const struct layer *l, const struct batch *b)
{
    int64_t C = l->spec->outputs;
    float *of = m->grads + l->weight->offset, *at = m->grads + l->bias->offset;
    const float *dy = m->slots[l->slot];
    memset(at, 0, l->bias->count * sizeof *at);
    for (int row = 0; row < rows_of(m, b); row++, dy += C) {
        m->k->add(of + *token_at(m, b, row) * (size_t)C, dy, C);
        m->k->add(at + row % m->io.W * C, dy, C);
    }
}

const struct op op_embed = {.name = "embed",
                            .takes = FLOW_TOKENS,
                            .add = add_embed,
                            .init = init_embed,
                            .forward = embed,
                            .back = embed_back};

/* ---- layer norm ---- */

static int add_layer_norm(struct model *m, int i, struct map_shape in,
                          struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    l->weight = model_add_param(m, l->spec->name, "weight", 1, (int[4]){in.C});
    l->bias = model_add_param(m, l->spec->name, "bias", 1, (int[4]){in.C});
    l->kept = scratch_in(&m->memory, 2 * (size_t)m->max_batch * (size_t)m->io.W);
    give_rows(m, l, in.C, 4 * in.C);
    return 0;
}

static void init_layer_norm(struct model *m, const struct layer *l, uint64_t key)
{
    init_constant(m, l->weight, 1);
    init_constant(m, l->bias, 0);
}

static void layer_norm(struct model *m, struct layer *l, const struct batch *b,
                       bool learn)
{
    m->k->layer_norm(rows_of(m, b), l->map.C, input_of(m, l, b),
                     m->weights + l->weight->offset, m->weights + l->bias->offset, l->y,
                     l->kept);
}

static void layer_norm_back(struct model *m, const struct layer *l, const struct batch *b)
{
    m->k->layer_norm_back(rows_of(m, b), l->map.C, input_of(m, l, b),
                          m->weights + l->weight->offset, l->kept, m->slots[l->slot],
                          m->grads + l->weight->offset, m->grads + l->bias->offset,
                          gradient_of(m, l->in), l->adds);
}

const struct op op_layer_norm = {.name = "layer_norm",
                                 .sums = true,
                                 .takes = FLOW_ROWS,
                                 .add = add_layer_norm,
                                 .init = init_layer_norm,
                                 .forward = layer_norm,
                                 .back = layer_norm_back};

/* ---- dense: y = x w + bias, w [inputs, outputs], and the residual ---- */

static int add_dense(struct model *m, int i, struct map_shape in, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    int K = l->spec->outputs;
    l->weight = model_add_param(m, l->spec->name, "weight", 2, (int[4]){in.C, K});
    l->bias = model_add_param(m, l->spec->name, "bias", 1, (int[4]){K});
    give_rows(m, l, K, (double)in.C * K);
    return 0;
}

/* As in GPT-2: weights of residual branches are scaled by 1 / sqrt(number of residual
 * branches). */
static void init_dense(struct model *m, const struct layer *l, uint64_t key)
{
    int shortcuts = 0;
    for (int i = 0; i < m->nlayers; i++)
        shortcuts += m->layers[i].shortcut >= 0;
    float smaller = l->shortcut >= 0 ? 1 / sqrtf((float)shortcuts) : 1;
    init_normal(m, l->weight, 0.02f * smaller, key);
    init_constant(m, l->bias, 0);
}

static void dense(struct model *m, struct layer *l, const struct batch *b, bool learn)
{
    int C = l->weight->dims[0], K = l->weight->dims[1];
    model_multiply(m, rows_of(m, b), K, C, matrix(input_of(m, l, b), (size_t)C),
                   matrix(m->weights + l->weight->offset, (size_t)K),
                   m->weights + l->bias->offset, l->y, false);
    if (l->shortcut >= 0)
        m->k->add(l->y, m->layers[l->shortcut].y, (int64_t)l->floats * b->n);
}

static void dense_back(struct model *m, const struct layer *l, const struct batch *b)
{
    int C = l->weight->dims[0], K = l->weight->dims[1], rows = rows_of(m, b);
    size_t at = l->weight->offset, ld = (size_t)K;
    const float *x = input_of(m, l, b), *dy = m->slots[l->slot];
    int64_t floats = (int64_t)l->floats * b->n;
    model_multiply(m, C, K, rows, transposed(x, (size_t)C), matrix(dy, ld), NULL,
                   m->grads + at, false);
    model_multiply(m, rows, C, K, matrix(dy, ld), transposed(m->weights + at, ld), NULL,
                   gradient_of(m, l->in), l->adds);
    m->k->column_sums(rows, K, dy, m->grads + l->bias->offset);
    if (l->shortcut < 0)
        return;
    float *back = gradient_of(m, l->shortcut);
    if (model_used_after(m, (int)(l - m->layers), l->shortcut))
        m->k->add(back, dy, floats);
    else
        memcpy(back, dy, (size_t)floats * sizeof *dy);
}

const struct op op_dense = {.name = "dense",
                            .product = true,
                            .sums = true,
                            .takes = FLOW_ROWS,
                            .add = add_dense,
                            .init = init_dense,
                            .forward = dense,
                            .back = dense_back};

/* ---- GELU ---- */

static int add_gelu(struct model *m, int i, struct map_shape in, struct ddp_err *err)
{
    give_rows(m, &m->layers[i], in.C, 10 * in.C);
    return 0;
}

static void gelu(struct model *m, struct layer *l, const struct batch *b, bool learn)
{
    m->k->gelu((int64_t)l->floats * b->n, input_of(m, l, b), l->y);
}

static void gelu_back(struct model *m, const struct layer *l, const struct batch *b)
{
    m->k->gelu_back((int64_t)l->floats * b->n, input_of(m, l, b), m->slots[l->slot],
                    gradient_of(m, l->in));
}

const struct op op_gelu = {.name = "gelu",
                           .takes = FLOW_ROWS,
                           .add = add_gelu,
                           .forward = gelu,
                           .back = gelu_back};

/* ---- attention ---- */

static struct attention_shape shape_of(const struct model *m, const struct layer *l)
{
    return (struct attention_shape){m->io.W, l->spec->size, l->map.C / l->spec->size};
}

static int add_attention(struct model *m, int i, struct map_shape in, struct ddp_err *err)
{
    struct layer *l = &m->layers[i];
    int C = in.C / 3;
    if (in.C % (3 * l->spec->size) != 0)
        return err_set(err,
                       "model '%s': '%s': %d numbers are not queries, keys and values of "
                       "%d heads",
                       m->type->name, l->spec->name, in.C, l->spec->size);
    give_rows(m, l, C, (double)m->io.W * C); /* half of all pairs, two products */
    l->kept = scratch_in(&m->memory,
                         (size_t)m->max_batch * (size_t)m->io.W * (size_t)l->spec->size);
    l->room = scratch_in(&m->memory, m->k->attention_room(shape_of(m, l)));
    return 0;
}

static void attention(struct model *m, struct layer *l, const struct batch *b, bool learn)
{
    m->k->attention(shape_of(m, l), b->n, input_of(m, l, b), l->y, l->kept, l->room);
}

static void attention_back(struct model *m, const struct layer *l, const struct batch *b)
{
    m->k->attention_back(shape_of(m, l), b->n, input_of(m, l, b), l->y, l->kept,
                         m->slots[l->slot], gradient_of(m, l->in), l->room);
}

const struct op op_attention = {.name = "attention",
                                .product = true,
                                .takes = FLOW_ROWS,
                                .add = add_attention,
                                .forward = attention,
                                .back = attention_back};
