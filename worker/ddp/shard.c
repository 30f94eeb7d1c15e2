/* worker/ddp/shard.c - see shard.h */
#include "worker/ddp/shard.h"

#include "common/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool shard_piece(const struct optim *o, const struct reducer *r, size_t i,
                 struct rank_piece *out)
{
    size_t n;
    const struct bucket *pieces = reducer_pieces(r, &n);
    if (i >= n)
        return false;
    size_t at = o->shared ? reducer_start(r, i) : pieces[i].offset;
    out->at = pieces[i];
    for (int k = 0; k < OPTIM_STATES; k++)
        out->states[k] = o->states[k] ? o->states[k] + at : NULL;
    return true;
}

void shard_keep(struct optim *o, const struct reducer *r)
{
    size_t n;
    const struct bucket *pieces = reducer_pieces(r, &n);
    for (int k = 0; k < OPTIM_STATES && reducer_shares(r) && !o->shared; k++) {
        if (!o->states[k])
            continue;
        float *mine = optim_block(reducer_start(r, n));
        for (size_t i = 0; i < n; i++)
            memcpy(mine + reducer_start(r, i), o->states[k] + pieces[i].offset,
                   pieces[i].count * sizeof *mine);
        free(o->states[k]);
        o->states[k] = mine;
    }
    o->shared = reducer_shares(r);
}

int shard_gather(struct optim *o, struct reducer *r, struct ddp_err *err)
{
    size_t n;
    const struct bucket *pieces = reducer_pieces(r, &n);
    for (int k = 0; k < OPTIM_STATES && o->shared; k++) {
        if (!o->states[k])
            continue;
        if (!o->whole[k])
            o->whole[k] = optim_block(o->n);
        for (size_t i = 0; i < n; i++)
            memcpy(o->whole[k] + pieces[i].offset, o->states[k] + reducer_start(r, i),
                   pieces[i].count * sizeof(float));
        TRY(reducer_gather(r, o->whole[k], err));
    }
    return 0;
}

void shard_forget(struct optim *o)
{
    for (int k = 0; k < OPTIM_STATES; k++) {
        free(o->whole[k]);
        o->whole[k] = NULL;
    }
}

/* ---- a step ---- */

struct pass {
    struct optim *o;
    float *w, lr;
};

/* Updates a block whose sums are ready, and copies the weights to the others while
 * they are in the cache. */
static void update(struct reducer *r, int thread, size_t i, size_t at, size_t n,
                   void *arg)
{
    enum { BIT = KERNELS_GRAIN }; /* small enough for the calling thread */
    const struct pass *p = arg;
    size_t pieces, state = reducer_start(r, i) + at;
    size_t offset = reducer_pieces(r, &pieces)[i].offset + at;
    const float *g = reducer_sum(r, p->o->kernels, thread, i, at, n);
    for (size_t k = 0; k < n; k += BIT)
        optim_piece(p->o, state + k, n - k < BIT ? n - k : BIT, p->w + offset + k, g + k,
                    p->lr);
    reducer_give(r, p->w, offset, n);
}

static int step_directly(struct optim *o, struct reducer *r, float *w, float lr,
                         struct ddp_err *err)
{
    struct pass pass = {o, w, lr};
    optim_count(o);
    reducer_each_block(r, update, &pass);
    return reducer_given(r, err);
}

static int step(struct optim *o, struct reducer *r, float *w, float lr,
                struct ddp_err *err)
{
    if (reducer_direct(r))
        return step_directly(o, r, w, lr, err);
    size_t n;
    const struct bucket *pieces = reducer_pieces(r, &n);
    if (!reducer_shares(r)) {
        optim_step(o, w, reducer_grads(r), lr);
        return 0;
    }
    optim_count(o);
    for (size_t i = 0; i < n; i++)
        optim_piece(o, reducer_start(r, i), pieces[i].count, w + pieces[i].offset,
                    reducer_sums(r, i), lr);
    return reducer_gather(r, w, err);
}

int shard_step(struct optim *o, struct reducer *r, float *w, const struct step_rule *how,
               double *norm, struct ddp_err *err)
{
    bool normed = how->clip_norm > 0 || how->check;
    float by = how->by;
    *norm = 0;
    if (normed || by != 1)
        reducer_sum_all(r, o->kernels);
    if (normed && reducer_norm(r, o->kernels, norm, err) < 0)
        return -1;
    *norm *= (double)by;
    if (!isfinite(*norm))
        return 0;
    if (how->clip_norm > 0 && *norm > how->clip_norm) /* as torch's clip_grad_norm_() */
        by *= (float)(how->clip_norm / (*norm + 1e-6));
    if (by != 1)
        reducer_scale(r, o->kernels, by);
    return step(o, r, w, how->lr, err);
}
