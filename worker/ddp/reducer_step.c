/* worker/ddp/reducer_step.c - the optimiser's step on this rank's pieces; see reducer.h
 *
 * Where ranks share memory, the sum of a rank's piece is accumulated in the others'
 * gradients, which are not needed any more: the next rank's become mine plus its own,
 * those of the one after it that sum plus its own, and the last has the total. This is
 * faster where CPUs have no common cache: writing a cache line that two CPUs have read
 * takes ten times as long as taking it from the one that has written it
 * (bench/README.md).
 */
#include "worker/ddp/reducer_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pieces ---- */

const struct rank_piece *reducer_pieces(const struct reducer *r, size_t *n)
{
    *n = r->npieces;
    return r->pieces;
}

/* Copies this rank's pieces of a whole state to `mine`, or back. */
static void copy_pieces(const struct reducer *r, float *whole, float *mine, bool back)
{
    for (const struct rank_piece *p = r->pieces; p < r->pieces + r->npieces; p++) {
        float *in_whole = whole + p->at.offset, *own = mine + p->start;
        memcpy(back ? in_whole : own, back ? own : in_whole, p->at.count * sizeof *own);
    }
}

void reducer_keep_states(const struct reducer *r, struct optim *o)
{
    for (int k = 0; k < OPTIM_STATES && r->settings.shard && !o->shared; k++) {
        if (!o->states[k])
            continue;
        float *mine = scratch(r->pieces[r->npieces].start);
        copy_pieces(r, o->states[k], mine, false);
        free(o->states[k]);
        o->states[k] = mine;
    }
    o->shared = r->settings.shard;
}

/* The pieces of all ranks into `block`, which has the layout of the gradients. */
static int gather(struct reducer *r, float *block, struct ddp_err *err)
{
    for (size_t b = 0; b < r->nbuckets && r->size > 1; b++) {
        int64_t began = now_ns();
        reducer_count_parts(r, r->buckets[b]);
        TRY(ddp_all_gatherv(r->group, block + r->pieces[b].at.offset,
                            block + r->buckets[b].offset, r->counts, DDP_F32, err));
        if (!r->others)
            reducer_span(r, b, r->buckets[b].count, began);
    }
    return 0;
}

int reducer_gather_states(struct reducer *r, struct optim *o, struct ddp_err *err)
{
    for (int k = 0; k < OPTIM_STATES && o->shared; k++) {
        if (!o->states[k])
            continue;
        if (!o->whole[k])
            o->whole[k] = scratch(o->n);
        copy_pieces(r, o->whole[k], o->states[k], true);
        TRY(gather(r, o->whole[k], err));
    }
    return 0;
}

void reducer_forget_states(struct optim *o)
{
    for (int k = 0; k < OPTIM_STATES; k++) {
        free(o->whole[k]);
        o->whole[k] = NULL;
    }
}

/* ---- the sums of this rank's pieces ---- */

/* Where those of piece i are, of ranks that share memory after sum_all(). Sums that are
 * computed from factors are in this rank's own block. */
static float *sums_of(const struct reducer *r, size_t i)
{
    size_t at = r->pieces[i].at.offset;
    return at +
           (r->others && !reducer_rows_at(r, at) ? r->others[r->size - 2] : r->grads);
}

/* Gradients [at, at + n): computed in `room`, or summed in the block of the last of
 * the other ranks. */
static const float *sum_up(const struct reducer *r, const struct kernels *k, size_t at,
                           size_t n, float *room)
{
    const float *sum = r->grads + at;
    if (reducer_rows_at(r, at)) {
        factors_sum(r, at, n, room);
        return room;
    }
    for (int i = 0; i < r->size - 1; sum = r->others[i++] + at)
        k->add(r->others[i] + at, sum, (int64_t)n);
    return sum;
}

/* What the engines' threads do with each block [at, at + n) of this rank's pieces. */
struct pass {
    const struct reducer *r;
    struct optim *o;
    float *w, lr; /* of update_block() */
    void (*fn)(const struct pass *p, int thread, size_t i, size_t at, size_t n);
};

/* Threads take the blocks of all pieces in turn. */
static void pass_part(int part, int parts, void *arg)
{
    const struct pass *p = arg;
    size_t turn = 0;
    for (size_t i = 0; i < p->r->npieces; i++) {
        struct bucket piece = p->r->pieces[i].at;
        size_t rows = reducer_rows_at(p->r, piece.offset),
               block = rows ? rows : KERNELS_GRAIN;
        for (size_t at = 0; at < piece.count; at += block)
            if (turn++ % (size_t)parts == (size_t)part)
                p->fn(p, part, i, at,
                      at + block < piece.count ? block : piece.count - at);
    }
}

static void sum_block(const struct pass *p, int thread, size_t i, size_t at, size_t n)
{
    sum_up(p->r, p->o->kernels, p->r->pieces[i].at.offset + at, n, sums_of(p->r, i) + at);
}

/* For what needs all sums first. */
static void sum_all(struct reducer *r, struct optim *o)
{
    if (r->others)
        pool_run(pass_part, &(struct pass){.r = r, .o = o, .fn = sum_block});
    r->summed = true;
}

static void scale(struct reducer *r, const struct kernels *k, float by)
{
    if (!r->settings.shard)
        k->scale(r->grads, (int64_t)r->count, by);
    for (size_t i = 0; i < r->npieces && r->settings.shard; i++)
        k->scale(sums_of(r, i), (int64_t)r->pieces[i].at.count, by);
}

static int norm_of(struct reducer *r, const struct kernels *k, double *norm,
                   struct ddp_err *err)
{
    double sum = 0;
    for (size_t i = 0; i < r->npieces; i++)
        sum += k->sum_squares(sums_of(r, i), (int64_t)r->pieces[i].at.count);
    int rc = ddp_all_reduce(r->group, &sum, 1, DDP_F64, DDP_SUM, err);
    *norm = sqrt(sum);
    return rc;
}

/* ---- the optimiser's step ---- */

/* Sums a block, unless all are, updates it, and copies the weights to the others while
 * they are in the cache. */
static void update_block(const struct pass *p, int thread, size_t i, size_t at, size_t n)
{
    enum { BIT = KERNELS_GRAIN }; /* small enough for the calling thread */
    const struct reducer *r = p->r;
    size_t state = r->pieces[i].start + at, offset = r->pieces[i].at.offset + at;
    float *room = r->rooms ? r->rooms + (size_t)thread * r->room : NULL;
    const float *g =
        r->summed ? sums_of(r, i) + at : sum_up(r, p->o->kernels, offset, n, room);
    for (size_t k = 0; k < n; k += BIT)
        optim_piece(p->o, offset + k, state + k, n - k < BIT ? n - k : BIT, p->w, g + k,
                    p->lr);
    for (int j = 1; j < r->size; j++) {
        float *there = ddp_arena_of(r->group, p->w, (r->rank + j) % r->size);
        memcpy(there + offset, p->w + offset, n * sizeof *there);
    }
}

static int update(struct reducer *r, struct optim *o, float *w, float lr,
                  struct ddp_err *err)
{
    if (!r->settings.shard) {
        optim_step(o, w, r->grads, lr);
        return 0;
    }
    o->counts.steps++;
    if (r->others) {
        pool_run(pass_part, &(struct pass){r, o, w, lr, update_block});
        int64_t began = now_ns();
        int rc = ddp_barrier(r->group, err); /* all have written their weights to all */
        reducer_span(r, 1, r->count, began);
        return rc;
    }
    for (size_t i = 0; i < r->npieces; i++) {
        const struct rank_piece *p = &r->pieces[i];
        optim_piece(o, p->at.offset, p->start, p->at.count, w, sums_of(r, i), lr);
    }
    return gather(r, w, err);
}

int reducer_step(struct reducer *r, struct optim *o, float *w,
                 const struct step_rule *how, double *norm, struct ddp_err *err)
{
    bool normed = how->clip_norm > 0 || how->check;
    float by = how->by;
    *norm = 0;
    if (normed || by != 1)
        sum_all(r, o);
    if (normed && norm_of(r, o->kernels, norm, err) < 0)
        return -1;
    *norm *= (double)by;
    if (!isfinite(*norm))
        return 0;
    if (how->clip_norm > 0 && *norm > how->clip_norm) /* as torch's clip_grad_norm_() */
        by *= (float)(how->clip_norm / (*norm + 1e-6));
    if (by != 1)
        scale(r, o->kernels, by);
    return update(r, o, w, how->lr, err);
}
