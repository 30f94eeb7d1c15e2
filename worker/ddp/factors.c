/* worker/ddp/factors.c - exchange of the factors of linear layers' gradients
 *
 * The gradient of a linear layer's weight is the product of two matrices with a row
 * for each sample: g (of outputs) and x (inputs). For 64 samples and a layer of 512 x
 * 784 these have 83 thousand numbers, the gradient 401 thousand. So ranks that share
 * memory exchange these factors as soon as backward has them, and each computes its
 * own rows of the sum over all ranks' products, in the order in which it would have
 * added their gradients: the same bits with the same number of multiplications, but a
 * fifth of the bytes, and no gradient that one CPU writes and another reads. (The idea
 * is "sufficient factor broadcasting": Xie et al., UAI 2016.)
 *
 * Factors are stored in the arena, with a place for each rank. A rank writes its
 * factors into the arenas of all others, so that each location is written by one rank
 * and read by another, always in the same direction.
 */
#include "worker/ddp/reducer_impl.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/replica.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 16 }; /* floats of a cache line: no line is shared by two ranks */

/* In a sharded reduction each float of a gradient except the rank's own is read by
 * another rank, and its cache line must be fetched back when backward writes it again.
 * Factors go in one direction, to each of the others, and are read again for every
 * block of rows. They pay while all ranks' factors together have fewer floats than the
 * gradient: with as many (`cnn`, batches of 64) a step took 1 % longer. (The trainer's
 * arena has space for that.) Rows are divided in units of LINE, so that a rank's begin
 * with a cache line. */
static bool pays(const struct factored *f, int size)
{
    const struct param *w = f->layer->weight;
    return w->dims[0] >= size * LINE && (size_t)size * f->floats <= w->count;
}

/* Do all ranks have the same kernels, and so the same layout? */
static int alike(struct ddp_group *group, const struct kernels *k, bool *yes,
                 struct ddp_err *err)
{
    uint64_t sum = fnv1a(FNV1A, k->name, strlen(k->name));
    size_t i;
    int other;
    TRY(replica_compare(group, &sum, 1, &other, &i, err));
    *yes = other == 0;
    return 0;
}

static int make_places(const struct reducer *r, struct factored *f, struct ddp_err *err)
{
    size_t room = (f->floats + LINE - 1) / LINE * LINE;
    float *first = ddp_arena_alloc(r->group, (size_t)r->size * room * sizeof *first, err);
    if (!first)
        return -1;
    f->places = xcalloc((size_t)r->size, sizeof *f->places);
    for (int i = 0; i < r->size; i++)
        f->places[i] = first + (size_t)((r->rank + i) % r->size) * room;
    f->layer->factors = f->places[0];
    return 0;
}

int factors_create(struct reducer *r, struct ddp_err *err)
{
    const struct model *m = r->settings.factors;
    bool yes;
    TRY(alike(r->group, m->k, &yes, err));
    r->factored = xcalloc((size_t)m->nlayers, sizeof *r->factored);
    for (struct model_op *l = m->layers; yes && l < m->layers + m->nlayers; l++) {
        struct factored *f = &r->factored[r->nfactored];
        if (!l->linear)
            continue;
        *f = (struct factored){l, m->k->linear_factors(l->linear), NULL};
        if (!pays(f, r->size))
            continue;
        r->nfactored++;
        TRY(make_places(r, f, err));
    }
    return 0;
}

void factors_destroy(struct reducer *r)
{
    for (int i = 0; i < r->nfactored; i++)
        free(r->factored[i].places);
    free(r->factored);
}

/* The layer of gradient `at`, NULL: none that has factors. */
static const struct factored *layer_at(const struct reducer *r, size_t at)
{
    for (int i = 0; i < r->nfactored; i++) {
        const struct param *w = r->factored[i].layer->weight;
        if (at >= w->offset && at < w->offset + w->count)
            return &r->factored[i];
    }
    return NULL;
}

size_t factors_row(const struct reducer *r, size_t offset)
{
    const struct factored *f = layer_at(r, offset);
    return f ? (size_t)f->layer->weight->dims[1] : 0;
}

void factors_give(const struct reducer *r, size_t offset)
{
    const struct factored *f = layer_at(r, offset);
    for (int i = 1; f && i < r->size; i++) {
        int to = (r->rank + i) % r->size;
        memcpy(ddp_arena_of(r->group, f->places[0], to), f->places[0],
               f->floats * sizeof(float));
    }
}

void factors_idle(const struct reducer *r)
{
    if (r->nfactored > 0)
        model_idle(r->settings.factors);
    for (int i = 0; i < r->nfactored; i++)
        factors_give(r, r->factored[i].layer->weight->offset);
}

void factors_sum(const struct reducer *r, size_t at, size_t n, float *rows)
{
    const struct factored *f = layer_at(r, at);
    if (!f)
        return;
    const struct param *w = f->layer->weight;
    size_t C = (size_t)w->dims[1], from = (at - w->offset) / C;
    r->settings.factors->k->linear_rows(f->layer->linear, f->places, r->size, (int)from,
                                        (int)(from + n / C), rows);
}
