/* worker/ddp/factors.c - see factors.h */
#include "worker/ddp/factors.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/replica.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 16 }; /* floats of a cache line: no line is shared by two ranks */

struct shared {
    struct model_product of;
    float **places; /* owned, [size]: in my arena, of the ranks from this one on */
};

struct factors {
    struct ddp_group *group;
    struct model *model;
    int rank, size;
    struct shared *layers; /* owned */
    int nlayers;
};

/* In a sharded reduction each float of a gradient except the rank's own is read by
 * another rank, and its cache line must be fetched back when backward writes it again.
 * Factors go in one direction, to each of the others, and are read again for every
 * block of rows. They pay while all ranks' factors together have fewer floats than the
 * gradient: with as many (`cnn`, batches of 64) a step took 1 % longer. (The trainer's
 * arena has space for that.) Rows are divided in units of LINE, so that a rank's begin
 * with a cache line. */
static bool pays(const struct model_product *p, int size)
{
    return p->K >= size * LINE &&
           (size_t)size * p->factors <= (size_t)p->K * (size_t)p->C;
}

/* Do all ranks have the same kernels, and so the same layout? */
static int alike(struct ddp_group *group, const struct model *m, bool *yes,
                 struct ddp_err *err)
{
    const char *name = model_kernels(m)->name;
    uint64_t sum = fnv1a(FNV1A, name, strlen(name));
    size_t i;
    int other;
    TRY(replica_compare(group, &sum, 1, &other, &i, err));
    *yes = other == 0;
    return 0;
}

static int make_places(struct factors *f, struct shared *s, struct ddp_err *err)
{
    size_t room = (s->of.factors + LINE - 1) / LINE * LINE;
    float *first = ddp_arena_alloc(f->group, (size_t)f->size * room * sizeof *first, err);
    if (!first)
        return -1;
    s->places = xcalloc((size_t)f->size, sizeof *s->places);
    for (int i = 0; i < f->size; i++)
        s->places[i] = first + (size_t)((f->rank + i) % f->size) * room;
    model_keep_factors(f->model, s->of.layer, s->places[0]);
    return 0;
}

int factors_create(struct ddp_group *group, struct model *model, struct factors **out,
                   struct ddp_err *err)
{
    int size = ddp_group_size(group), rc = 0;
    bool yes;
    *out = NULL;
    TRY(alike(group, model, &yes, err));
    OWNED struct model_product *of = xcalloc((size_t)model_layers(model), sizeof *of);
    int n = model_products(model, of);
    struct factors *f = xcalloc(1, sizeof *f);
    f->layers = xcalloc((size_t)n + 1, sizeof *f->layers);
    f->group = group;
    f->model = model;
    f->rank = ddp_group_rank(group);
    f->size = size;
    for (int i = 0; yes && i < n && rc == 0; i++) {
        if (!pays(&of[i], size))
            continue;
        f->layers[f->nlayers].of = of[i];
        rc = make_places(f, &f->layers[f->nlayers++], err);
    }
    if (rc == 0 && f->nlayers > 0)
        *out = f;
    else
        factors_destroy(f);
    return rc;
}

void factors_destroy(struct factors *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->nlayers; i++)
        free(f->layers[i].places);
    free(f->layers);
    free(f);
}

/* The layer of gradient `at`, NULL: none that has factors. */
static const struct shared *layer_at(const struct factors *f, size_t at)
{
    for (int i = 0; f && i < f->nlayers; i++) {
        const struct model_product *of = &f->layers[i].of;
        if (at >= of->offset && at < of->offset + (size_t)of->K * (size_t)of->C)
            return &f->layers[i];
    }
    return NULL;
}

size_t factors_row(const struct factors *f, size_t offset)
{
    const struct shared *s = layer_at(f, offset);
    return s ? (size_t)s->of.C : 0;
}

void factors_give(struct factors *f, size_t offset)
{
    const struct shared *s = layer_at(f, offset);
    for (int i = 1; s && i < f->size; i++) {
        int to = (f->rank + i) % f->size;
        memcpy(ddp_arena_of(f->group, s->places[0], to), s->places[0],
               s->of.factors * sizeof(float));
    }
}

void factors_idle(struct factors *f)
{
    model_idle(f->model);
    for (int i = 0; i < f->nlayers; i++)
        factors_give(f, f->layers[i].of.offset);
}

void factors_sum(const struct factors *f, size_t at, size_t n, float *rows)
{
    const struct shared *s = layer_at(f, at);
    if (!s)
        return;
    size_t C = (size_t)s->of.C, from = (at - s->of.offset) / C;
    model_make_rows(f->model, s->of.layer, s->places, f->size, (int)from,
                    (int)(from + n / C), rows);
}
