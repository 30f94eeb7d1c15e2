/* worker/optim/optim.c - see optim.h */
#include "worker/optim/optim.h"

#include "common/mem.h"
#include "worker/kernels/scratch.h"

#include <stdlib.h>
#include <string.h>

static float *state(const struct optim *o, int which, size_t at)
{
    return o->states[which] ? o->states[which] + at : NULL;
}

static void step_sgd(struct optim *o, size_t at, size_t n, float *w, const float *g,
                     float lr)
{
    o->kernels->sgd(w, g, state(o, 0, at), (int64_t)n, lr, o->settings.momentum,
                    o->settings.decay);
}

static void step_adam(struct optim *o, size_t at, size_t n, float *w, const float *g,
                      float lr)
{
    o->kernels->adam(w, g, state(o, 0, at), state(o, 1, at), (int64_t)n, lr, o->type->b1,
                     o->type->b2, o->type->eps, o->settings.decay, 1, (int64_t)o->steps);
}

static void step_adamw(struct optim *o, size_t at, size_t n, float *w, const float *g,
                       float lr)
{
    o->kernels->adam(w, g, state(o, 0, at), state(o, 1, at), (int64_t)n, lr, o->type->b1,
                     o->type->b2, o->type->eps, 0, 1 - lr * o->settings.decay,
                     (int64_t)o->steps);
}

static void step_adadelta(struct optim *o, size_t at, size_t n, float *w, const float *g,
                          float lr)
{
    o->kernels->adadelta(w, g, state(o, 0, at), state(o, 1, at), (int64_t)n, lr,
                         o->type->b1, o->type->eps, o->settings.decay);
}

static const struct optim_type types[] = {
    {"sgd", {"momentum_buffer"}, 0.01, 0, 0, 0, 0, step_sgd},
    {"adam", {"exp_avg", "exp_avg_sq"}, 0.001, 0, 0.9f, 0.999f, 1e-8f, step_adam},
    {"adamw", {"exp_avg", "exp_avg_sq"}, 0.001, 0.01, 0.9f, 0.999f, 1e-8f, step_adamw},
    {"adadelta", {"square_avg", "acc_delta"}, 1, 0, 0.9f, 0, 1e-6f, step_adadelta},
};

const struct optim_type *optim_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    }
    return NULL;
}

/* On a cache line, as weights and gradients are: a vector loop that first walks to an
 * aligned element would else round other elements differently from run to run, and a
 * resumed run would not be the same to the bit. */
float *optim_block(size_t n)
{
    return scratch(n);
}

void optim_init(struct optim *o, const struct optim_type *type,
                struct optim_settings settings, const struct kernels *kernels, size_t n)
{
    *o = (struct optim){.type = type, .settings = settings, .kernels = kernels, .n = n};
    for (int i = 0; i < OPTIM_STATES; i++) {
        if (type->states[i])
            o->states[i] = optim_block(n);
    }
    if (type->step == step_sgd && settings.momentum <= 0) { /* nothing to remember */
        free(o->states[0]);
        o->states[0] = NULL;
    }
}

void optim_finish(struct optim *o)
{
    for (int i = 0; i < OPTIM_STATES; i++) {
        free(o->states[i]);
        free(o->whole[i]);
    }
    *o = (struct optim){0};
}

void optim_count(struct optim *o)
{
    o->steps++;
}

void optim_piece(struct optim *o, size_t at, size_t n, float *w, const float *g, float lr)
{
    o->type->step(o, at, n, w, g, lr);
}

void optim_step(struct optim *o, float *w, const float *g, float lr)
{
    optim_count(o);
    optim_piece(o, 0, o->n, w, g, lr);
}

float *optim_whole(const struct optim *o, int which)
{
    return o->whole[which] ? o->whole[which] : o->states[which];
}
