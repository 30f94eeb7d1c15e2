/* worker/ddp/shard.c - see shard.h */
#include "worker/ddp/shard.h"

#include "worker/kernels/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The floats of a piece in a rank's states: whole cache lines, so that the next piece
 * is aligned (optim_block() says why). */
static size_t room_of(struct bucket piece)
{
    enum { LINE = 16 };
    return (piece.count + LINE - 1) / LINE * LINE;
}

static size_t floats_of(const struct bucket *pieces, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += room_of(pieces[i]);
    return all;
}

bool shard_piece(const struct optim *o, const struct reducer *r, size_t i,
                 struct rank_piece *out)
{
    size_t n;
    const struct bucket *pieces = reducer_pieces(r, &n);
    if (i >= n)
        return false;
    size_t at = o->shared ? floats_of(pieces, i) : pieces[i].offset;
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
        float *mine = optim_block(floats_of(pieces, n)), *to = mine;
        for (size_t i = 0; i < n; to += room_of(pieces[i++]))
            memcpy(to, o->states[k] + pieces[i].offset, pieces[i].count * sizeof *to);
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
        const float *from = o->states[k];
        for (size_t i = 0; i < n; from += room_of(pieces[i++]))
            memcpy(o->whole[k] + pieces[i].offset, from, pieces[i].count * sizeof *from);
        if (reducer_gather(r, o->whole[k], err) < 0)
            return -1;
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
    struct reducer *r;
    float *w, lr;
};

/* Updates a block whose sums are ready, and copies the weights to the others while
 * they are in the cache. */
static void update(const struct pass *p, size_t state, size_t at, size_t n,
                   const float *g)
{
    enum { BIT = KERNELS_GRAIN }; /* small enough for the calling thread */
    for (size_t i = 0; i < n; i += BIT)
        optim_piece(p->o, state + i, n - i < BIT ? n - i : BIT, p->w + at + i, g + i,
                    p->lr);
    reducer_give(p->r, p->w, at, n);
}

/* Threads take the blocks of all pieces in turn. */
static void pass_part(int part, int parts, void *arg)
{
    const struct pass *p = arg;
    size_t n, state = 0, turn = 0;
    const struct bucket *pieces = reducer_pieces(p->r, &n);
    for (size_t i = 0; i < n; state += room_of(pieces[i++])) {
        size_t block = reducer_block(p->r, i);
        for (size_t at = 0; at < pieces[i].count; at += block) {
            if (turn++ % (size_t)parts != (size_t)part)
                continue;
            size_t left = pieces[i].count - at, count = left < block ? left : block;
            update(p, state + at, pieces[i].offset + at, count,
                   reducer_sum(p->r, p->o->kernels, part, i, at, count));
        }
    }
}

static int step_directly(struct optim *o, struct reducer *r, float *w, float lr,
                         struct ddp_err *err)
{
    struct pass pass = {o, r, w, lr};
    optim_count(o);
    pool_run(pass_part, &pass);
    return reducer_given(r, err);
}

static int step(struct optim *o, struct reducer *r, float *w, float lr,
                struct ddp_err *err)
{
    if (reducer_direct(r))
        return step_directly(o, r, w, lr, err);
    size_t n, at = 0;
    const struct bucket *pieces = reducer_pieces(r, &n);
    if (!reducer_shares(r)) {
        optim_step(o, w, reducer_grads(r), lr);
        return 0;
    }
    optim_count(o);
    for (size_t i = 0; i < n; at += room_of(pieces[i++]))
        optim_piece(o, at, pieces[i].count, w + pieces[i].offset, reducer_sums(r, i), lr);
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
