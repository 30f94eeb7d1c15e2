/* worker/nn/head.c - the head of a model of tokens: logits, their loss and gradients
 *
 * Logits are products with the embedding's weight, or with their own. Those of a whole
 * batch (50,257 per token) would need more memory than the rest of the model. So they are
 * computed for some rows at a time, replaced by their gradients, and these are multiplied
 * at once into the gradients of the last layer and of the weight, to which the embedding
 * then adds its own.
 */
#include "worker/nn/model_impl.h"

#ifndef LOGITS_AT_ONCE
#define LOGITS_AT_ONCE (16 << 20) /* floats, approximately; a test has fewer */
#endif

void head_plan(struct model *m)
{
    long all = (long)m->max_batch * m->io.W, piece = LOGITS_AT_ONCE / m->io.outputs;
    piece = piece < 64 ? 64 : piece;
    m->head.rows = (int)(all < piece ? all : piece);
    m->layers[m->nlayers - 1].work +=
        (double)m->io.W * m->io.outputs * model_last(m)->map.C;
    model_want(m, &m->head.logits, (double)m->head.rows * m->io.outputs);
    model_want(m, &m->head.right, m->head.rows);
    model_want(m, &m->found, 4.0 * m->head.rows);
}

/* Their weight, [outputs, C]. */
static const struct param *weight_of(const struct model *m)
{
    return m->layers[model_untied(m) ? m->nlayers - 1 : 0].weight;
}

/* Logits from the last layer's rows y. */
static void make_logits(const struct model *m, const float *y, int rows)
{
    int C = model_last(m)->map.C, V = m->io.outputs;
    const float *w = weights_at(m, weight_of(m));
    model_multiply(m, rows, V, C, matrix(y, (size_t)C), transposed(w, (size_t)C), NULL,
                   m->head.logits, false);
}

/* From their gradients those of the rows and of the weight; `more`: added to the
 * latter. */
static void logits_back(const struct model *m, const float *y, float *dy, int rows,
                        bool more)
{
    int C = model_last(m)->map.C, V = m->io.outputs;
    const float *g = m->head.logits, *w = weights_at(m, weight_of(m));
    size_t ld = (size_t)C, ldg = (size_t)V;
    model_multiply(m, rows, C, V, matrix(g, ldg), matrix(w, ld), NULL, dy, false);
    model_multiply(m, V, C, rows, transposed(g, ldg), matrix(y, ld), NULL,
                   sums_at(m, weight_of(m)), more || pass_adds(m));
}

float head_loss(const struct model *m, float *dy, float smooth, float scale, int *correct)
{
    const struct batch *b = &m->batch;
    const struct head *h = &m->head;
    int T = m->io.W, all = b->n * T;
    size_t C = (size_t)model_last(m)->map.C;
    const float *y = model_last(m)->y;
    double loss = 0;
    for (int from = 0; from < all; from += h->rows) {
        int rows = all - from < h->rows ? all - from : h->rows;
        for (int i = 0, r = from; i < rows; i++, r++)
            h->right[i] =
                b->tokens[(size_t)(r / T) * (size_t)(T + 1) + (size_t)(r % T) + 1];
        make_logits(m, y + (size_t)from * C, rows);
        m->k->class_loss(rows, m->io.outputs, h->logits, h->right, smooth,
                         dy ? scale / (float)all : 0, m->found);
        loss += model_sum_losses(m->found, rows, correct);
        if (dy)
            logits_back(m, y + (size_t)from * C, dy + (size_t)from * C, rows, from > 0);
    }
    return (float)(loss / all);
}

const float *head_logits(const struct model *m, const float *y)
{
    make_logits(m, y, 1);
    return m->head.logits;
}
