/* worker/optim/optim.c - see optim.h */
#include "worker/optim/optim.h"

#include "common/mem.h"
#include "worker/kernels/scratch.h"

#include <stdlib.h>
#include <string.h>

static const char *const momentum[OPTIM_STATES] = {"momentum_buffer", NULL, "ema"};
static const char *const moments[OPTIM_STATES] = {"exp_avg", "exp_avg_sq", "ema"};
static const char *const deltas[OPTIM_STATES] = {"square_avg", "acc_delta", "ema"};

static const struct optim_type types[] = {
    {"sgd", RULE_SGD, false, 0.01, 0, 0, 0, 0, momentum},
    {"adam", RULE_ADAM, false, 0.001, 0, 0.9f, 0.999f, 1e-8f, moments},
    {"adamw", RULE_ADAM, true, 0.001, 0.01, 0.9f, 0.999f, 1e-8f, moments},
    {"adadelta", RULE_ADADELTA, false, 1, 0, 0.9f, 0, 1e-6f, deltas},
};

const struct optim_type *optim_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    }
    return NULL;
}

bool optim_uses(const struct optim_type *type, const struct optim_settings *settings,
                int state)
{
    const bool used[] = {type->rule != RULE_SGD || settings->momentum > 0, true,
                         settings->average > 0};
    return type->states[state] && used[state];
}

void optim_init(struct optim *o, const struct optim_type *type,
                struct optim_settings settings, const struct kernels *kernels, size_t n)
{
    *o = (struct optim){.type = type,
                        .b1 = type->rule == RULE_SGD ? settings.momentum : type->b1,
                        .b2 = settings.beta2 > 0 ? settings.beta2 : type->b2,
                        .penalty = type->decoupled ? 0 : settings.decay,
                        .shrink = type->decoupled ? settings.decay : 0,
                        .nearer = (float)(1 - (double)settings.average),
                        .kernels = kernels,
                        .n = n};
    for (int i = 0; i < OPTIM_STATES; i++)
        if (optim_uses(type, &settings, i))
            o->states[i] = scratch_sparse(n); /* of which this rank may need a part */
}

void optim_exempt(struct optim *o, size_t offset, size_t count)
{
    o->borders = xrealloc(o->borders, o->nborders + 2, sizeof *o->borders);
    o->borders[o->nborders++] = offset;
    o->borders[o->nborders++] = offset + count;
}

void optim_finish(struct optim *o)
{
    for (int i = 0; i < OPTIM_STATES; i++) {
        free(o->states[i]);
        free(o->whole[i]);
    }
    free(o->borders);
    *o = (struct optim){0};
}

/* e += nearer (w - e): sgd with w as the gradient, a decay of -1, and the rate
 * -nearer. */
static void average(struct optim *o, size_t at, size_t n, const float *w)
{
    float *e = o->states[OPTIM_AVERAGE] + at;
    if (o->counts.steps == 1)
        memcpy(e, w, n * sizeof *e);
    else
        o->kernels->update((struct update){.rule = RULE_SGD,
                                           .w = e,
                                           .g = w,
                                           .n = (int64_t)n,
                                           .lr = -o->nearer,
                                           .decay = -1});
}

/* Weights that all decay, or none. */
static void update(struct optim *o, bool decays, size_t at, size_t n, float *w,
                   const float *g, float lr)
{
    const struct optim_type *t = o->type;
    o->kernels->update((struct update){.rule = t->rule,
                                       .w = w,
                                       .m = o->states[0] ? o->states[0] + at : NULL,
                                       .v = o->states[1] ? o->states[1] + at : NULL,
                                       .g = g,
                                       .n = (int64_t)n,
                                       .lr = lr,
                                       .decay = decays ? o->penalty : 0,
                                       .b1 = o->b1,
                                       .b2 = o->b2,
                                       .eps = t->eps,
                                       .keep = decays ? 1 - lr * o->shrink : 1,
                                       .step = (int64_t)o->counts.steps});
}

/* The number of borders up to `at`. */
static size_t borders_before(const struct optim *o, size_t at)
{
    size_t from = 0, to = o->nborders;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (o->borders[mid] <= at)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

void optim_piece(struct optim *o, size_t at, size_t state, size_t n, float *w,
                 const float *g, float lr)
{
    size_t next = borders_before(o, at);
    for (size_t k = 0, end; k < n; k = end, next++) {
        bool cut = next < o->nborders && o->borders[next] < at + n;
        end = cut ? o->borders[next] - at : n;
        update(o, next % 2 == 0, state + k, end - k, w + at + k, g + k, lr);
    }
    if (o->states[OPTIM_AVERAGE])
        average(o, state, n, w + at);
}

void optim_swap_average(struct optim *o, float *w)
{
    float *e = optim_whole(o, OPTIM_AVERAGE);
    for (size_t i = 0; i < o->n; i++) {
        float was = w[i];
        w[i] = e[i];
        e[i] = was;
    }
}

void optim_step(struct optim *o, float *w, const float *g, float lr)
{
    o->counts.steps++;
    optim_piece(o, 0, 0, o->n, w, g, lr);
}
