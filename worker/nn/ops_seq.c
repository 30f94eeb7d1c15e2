/* worker/nn/ops_seq.c - the ops of sequence layers: parameters, shapes, forward,
 * backward
 *
 * y is [n, W, features]: a row of features for each token of a sample.
 */
#include "common/err.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model_impl.h"

#include <math.h>
#include <string.h>

static int rows_of(const struct model *m)
{
    return m->batch.n * (m->to - m->from);
}

/* The first row that is read of the input, and written. */
static const float *rows_in(const struct model *m, const struct model_op *l)
{
    return input_of(m, l) + (size_t)m->from * (size_t)l->given.C;
}

static float *rows_out(const struct model *m, const struct model_op *l)
{
    return l->y + (size_t)m->from * (size_t)l->map.C;
}

/* A row for each token; returns 0. */
static int give_rows(const struct model *m, struct model_op *l, int features, double work)
{
    l->flow = FLOW_ROWS;
    l->map = (struct map_shape){features, 1, 1};
    l->floats = (size_t)m->io.W * (size_t)features;
    l->work = m->io.W * work;
    return 0;
}

/* ---- embeddings of tokens and positions ---- */

static int add_embed(struct model *m, struct model_op *l, struct ddp_err *err)
{
    int C = l->spec->outputs;
    const char *positions = l->spec->positions;
    l->weight =
        model_add_param(m, l->spec->name, "weight", 2, (int[4]){m->io.outputs, C});
    if (positions)
        l->bias = model_add_param(m, positions, "weight", 2, (int[4]){m->io.W, C});
    return give_rows(m, l, C, C);
}

static void init_embed(struct model *m, const struct model_op *l, uint64_t key)
{
    param_draw(m, l->weight, 0.02f, key);
    param_draw(m, l->bias, 0.02f, key);
}

static const uint32_t *token_at(const struct model *m, int row)
{
    size_t W = (size_t)m->io.W;
    return m->batch.tokens + (size_t)row / W * (W + 1) + (size_t)row % W;
}

static void embed_forward(struct model *m, const struct model_op *l)
{
    size_t C = (size_t)l->spec->outputs;
    float *y = rows_out(m, l);
    for (int row = m->from; row < m->from + rows_of(m); row++, y += C) {
        memcpy(y, weights_at(m, l->weight) + *token_at(m, row) * C, C * sizeof *y);
        if (l->bias)
            m->k->add(y, weights_at(m, l->bias) + (size_t)(row % m->io.W) * C,
                      (int64_t)C);
    }
}

/* Adds to the weight's gradient if the head, or an earlier pass, has begun it. */
static void embed_back(struct model *m, const struct model_op *l)
{
    int64_t C = l->spec->outputs;
    float *of = sums_at(m, l->weight), *at = sums_at(m, l->bias);
    const float *dy = m->slots[l->slot];
    if (model_untied(m) && !pass_adds(m))
        memset(of, 0, l->weight->count * sizeof *of);
    if (at && !pass_adds(m))
        memset(at, 0, l->bias->count * sizeof *at);
    for (int row = 0; row < rows_of(m); row++, dy += C) {
        m->k->add(of + *token_at(m, row) * (size_t)C, dy, C);
        if (at)
            m->k->add(at + row % m->io.W * C, dy, C);
    }
}

static void embed(struct model *m, const struct model_op *l, bool back)
{
    (back ? embed_back : embed_forward)(m, l);
}

const struct op op_embed = {.shares = true,
                            .takes = FLOW_TOKENS,
                            .add = add_embed,
                            .init = init_embed,
                            .run = embed};

/* ---- layer norm, RMS norm ---- */

static int add_row_norm(struct model *m, struct model_op *l, struct ddp_err *err)
{
    l->weight = model_add_param(m, l->spec->name, "weight", 1, (int[4]){l->given.C});
    if (l->spec->kind == LAYER_LAYER_NORM && !l->spec->bare)
        l->bias = model_add_param(m, l->spec->name, "bias", 1, (int[4]){l->given.C});
    model_want(m, &l->kept, 2.0 * m->max_batch * m->io.W);
    return give_rows(m, l, l->given.C, 4 * l->given.C);
}

static void init_row_norm(struct model *m, const struct model_op *l, uint64_t key)
{
    param_fill(m, l->weight, 1);
    param_fill(m, l->bias, 0);
}

static struct row_norm norm_of(const struct model *m, const struct model_op *l)
{
    return (struct row_norm){.C = l->map.C,
                             .rms = l->spec->kind == LAYER_RMS_NORM,
                             .eps = l->spec->eps,
                             .w = weights_at(m, l->weight),
                             .bias = weights_at(m, l->bias)};
}

static void row_norm(struct model *m, const struct model_op *l, bool back)
{
    int rows = rows_of(m);
    if (back)
        m->k->row_norm_back(norm_of(m, l), rows, rows_in(m, l), l->kept,
                            m->slots[l->slot], grads_at(m, l->weight),
                            grads_at(m, l->bias), gradient_of(m, l->in), l->adds);
    else
        m->k->row_norm(norm_of(m, l), rows, rows_in(m, l), rows_out(m, l), l->kept);
}

const struct op op_row_norm = {.sums = true,
                               .takes = FLOW_ROWS,
                               .add = add_row_norm,
                               .init = init_row_norm,
                               .run = row_norm};

/* ---- dense: y = x w + bias, w [inputs, outputs], or w^T with the outputs first ---- */

/* The weights, or with no `inputs` the biases, of the layer and of those that are joined
 * to it: one after another, so that they are one matrix, or vector, in the blocks. */
static const struct param *add_params(struct model *m, struct model_op *l,
                                      const char *what, int inputs)
{
    const struct layer_spec *s = l->spec;
    int ndim = inputs ? 2 : 1, own = s->outputs;
    for (int j = 0; j < LAYER_JOINED; j++)
        own -= s->joined[j].outputs;
    bool first = s->outputs_first || ndim == 1;
    struct param all = *model_add_param(
        m, s->name, what, ndim, first ? (int[4]){own, inputs} : (int[4]){inputs, own});
    for (int j = 0; j < LAYER_JOINED && s->joined[j].name; j++) {
        int K = s->joined[j].outputs;
        const struct param *p =
            model_add_param(m, s->joined[j].name, what, ndim, (int[4]){K, inputs});
        all.dims[0] += K;
        all.count += p->count;
    }
    struct param *to = &l->joined[ndim - 1];
    *to = all;
    return to;
}

static int add_dense(struct model *m, struct model_op *l, struct ddp_err *err)
{
    l->weight = add_params(m, l, "weight", l->given.C);
    if (!l->spec->bare)
        l->bias = add_params(m, l, "bias", 0);
    return give_rows(m, l, l->spec->outputs, (double)l->given.C * l->spec->outputs);
}

/* As in GPT-2: weights of residual branches are scaled by 1 / sqrt(number of residual
 * branches). */
static void init_dense(struct model *m, const struct model_op *l, uint64_t key)
{
    int shortcuts = 0;
    for (int i = 0; i < m->nlayers; i++)
        shortcuts += m->layers[i].shortcut >= 0;
    float smaller = l->shortcut >= 0 ? 1 / sqrtf((float)shortcuts) : 1;
    param_draw(m, l->weight, 0.02f * smaller, key);
    param_fill(m, l->bias, 0);
}

/* The weight as [inputs, outputs]. */
static struct matrix weight_of(const struct model *m, const struct model_op *l)
{
    const float *w = weights_at(m, l->weight);
    return l->spec->outputs_first ? transposed(w, (size_t)l->weight->dims[1])
                                  : matrix(w, (size_t)l->weight->dims[1]);
}

static struct matrix transpose_of(struct matrix a)
{
    return (struct matrix){a.at, a.column, a.row};
}

static void dense(struct model *m, const struct model_op *l, bool back)
{
    int C = l->given.C, K = l->map.C, rows = rows_of(m);
    struct matrix x = matrix(rows_in(m, l), (size_t)C);
    struct matrix dy = matrix(m->slots[l->slot], (size_t)K), w = weight_of(m, l);
    float *dw = grads_at(m, l->weight);
    if (!back) {
        model_multiply(m, rows, K, C, x, w, weights_at(m, l->bias), rows_out(m, l),
                       false);
        return;
    }
    if (l->spec->outputs_first)
        model_multiply(m, K, C, rows, transpose_of(dy), x, NULL, dw, false);
    else
        model_multiply(m, C, K, rows, transpose_of(x), dy, NULL, dw, false);
    model_multiply(m, rows, C, K, dy, transpose_of(w), NULL, gradient_of(m, l->in),
                   l->adds);
    if (l->bias)
        m->k->column_sums(rows, K, dy.at, grads_at(m, l->bias));
}

const struct op op_dense = {.product = true,
                            .sums = true,
                            .takes = FLOW_ROWS,
                            .add = add_dense,
                            .init = init_dense,
                            .run = dense};

/* ---- GELU and SiLU ---- */

struct activation model_activation(const struct layer_spec *layer, int C)
{
    return layer->kind == LAYER_GELU
               ? (struct activation){1.59576912160573f, 0.0713548162726f, C, layer->gated}
               : (struct activation){1, 0, C, layer->gated};
}

static int add_activation(struct model *m, struct model_op *l, struct ddp_err *err)
{
    if (l->spec->gated && l->given.C % 2)
        return layer_refuse(m, l, err, "'%s': %d numbers are no two halves",
                            l->spec->name, l->given.C);
    return give_rows(m, l, l->spec->gated ? l->given.C / 2 : l->given.C, 10 * l->given.C);
}

static void activate(struct model *m, const struct model_op *l, bool back)
{
    struct activation f = model_activation(l->spec, l->map.C);
    if (back)
        m->k->activation(f, rows_of(m), rows_in(m, l), m->slots[l->slot],
                         gradient_of(m, l->in));
    else
        m->k->activation(f, rows_of(m), rows_in(m, l), NULL, rows_out(m, l));
}

const struct op op_activation = {
    .takes = FLOW_ROWS, .add = add_activation, .run = activate};

/* ---- attention ---- */

static struct attention_shape shape_of(const struct model *m, const struct model_op *l)
{
    int heads = l->spec->size, kv = l->spec->kv_heads, D = l->given.C / (heads + 2 * kv);
    struct attention_shape s = {m->from, m->to, heads, kv, D, 0, 0};
    if (model_drops(m, l)) {
        s.dropout = l->spec->dropout;
        s.key = model_dropout_key(m, l);
    }
    return s;
}

static int check_heads(const struct model *m, const struct model_op *l,
                       struct ddp_err *err)
{
    int C = l->given.C;
    struct attention_shape s = shape_of(m, l);
    if (C != s.D * (s.heads + 2 * s.kv_heads) || s.heads % s.kv_heads)
        return layer_refuse(
            m, l, err,
            "'%s': %d numbers are not queries, keys and values of %d "
            "heads%s",
            l->spec->name, C, s.heads,
            s.kv_heads < s.heads ? ", several of which share keys and values" : "");
    return 0;
}

static int add_attention(struct model *m, struct model_op *l, struct ddp_err *err)
{
    struct attention_shape s = shape_of(m, l);
    int C = s.heads * s.D;
    TRY(check_heads(m, l, err));
    give_rows(m, l, C, (double)m->io.W * C); /* half of all pairs, two products */
    model_want(m, &l->kept, (double)m->max_batch * m->io.W * s.heads);
    model_want(m, &l->room, (double)m->k->attention_room(s));
    return 0;
}

static void attention(struct model *m, const struct model_op *l, bool back)
{
    const float *qkv = input_of(m, l);
    if (back)
        m->k->attention_back(shape_of(m, l), m->batch.n, qkv, l->y, l->kept,
                             m->slots[l->slot], gradient_of(m, l->in), l->room);
    else
        m->k->attention(shape_of(m, l), m->batch.n, qkv, l->y, l->kept, l->room);
}

const struct op op_attention = {
    .product = true, .takes = FLOW_ROWS, .add = add_attention, .run = attention};

/* ---- rotary positions: Su et al., "RoFormer", 2021, in halves of a head ---- */

/* The angle between neighbouring positions. As in Llama 3.1 those that turn less than
 * `low` times in `original` positions turn 1 / factor as far, those that turn `high`
 * times or more do as without a factor, with a line in between; with 0 positions all of
 * them are scaled ("linear"). */
static float frequency_of(const struct layer_spec *s, float exponent)
{
    float all = 1 / powf((float)s->base, exponent);
    float turns = (float)s->original * all / (float)(2 * M_PI);
    float kept = fminf(fmaxf((turns - s->low) / (s->high - s->low), 0), 1);
    return all * (kept + (1 - kept) / s->factor);
}

static int add_rotary(struct model *m, struct model_op *l, struct ddp_err *err)
{
    int D = shape_of(m, l).D;
    TRY(check_heads(m, l, err));
    if (D % 2)
        return layer_refuse(m, l, err, "'%s': heads of %d numbers have no halves",
                            l->spec->name, D);
    if (l->spec->low >= l->spec->high)
        return layer_refuse(m, l, err, "'%s': low is not below high", l->spec->name);
    model_want(m, &l->kept, (double)m->io.W * D);
    return give_rows(m, l, l->given.C, 4 * l->given.C);
}

/* Keeps the cosine and sine of the angle of each position and number of half a head, in
 * float as Hugging Face has them. */
static void make_rotary(struct model *m, struct model_op *l)
{
    int T = m->io.W, D = shape_of(m, l).D;
    for (int d = 0; d < D / 2; d++) {
        float frequency = frequency_of(l->spec, (float)(2 * d) / (float)D);
        for (int t = 0; t < T; t++) {
            float angle = (float)t * frequency;
            l->kept[t * D + d] = cosf(angle);
            l->kept[t * D + D / 2 + d] = sinf(angle);
        }
    }
}

static void rotary(struct model *m, const struct model_op *l, bool back)
{
    m->k->rotary(shape_of(m, l), m->batch.n, l->kept,
                 back ? m->slots[l->slot] : input_of(m, l),
                 back ? gradient_of(m, l->in) : l->y, back);
}

const struct op op_rotary = {
    .takes = FLOW_ROWS, .add = add_rotary, .make = make_rotary, .run = rotary};

/* ---- logits with a weight of their own: head.c computes them ---- */

static int add_logits(struct model *m, struct model_op *l, struct ddp_err *err)
{
    l->weight = model_add_param(m, l->spec->name, "weight", 2,
                                (int[4]){m->io.outputs, l->given.C});
    l->flow = FLOW_LOGITS;
    return 0;
}

const struct op op_logits = {
    .shares = true, .takes = FLOW_ROWS, .add = add_logits, .init = init_embed};
