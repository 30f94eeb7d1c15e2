/* worker/ddp/shard.c - see shard.h */
#include "worker/ddp/shard.h"

#include <stdlib.h>
#include <string.h>

static size_t floats_of(const struct bucket *pieces, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += pieces[i].count;
    return all;
}

void shard_keep(struct optim *o, const struct reducer *r)
{
    size_t n;
    const struct bucket *pieces = reducer_pieces(r, &n);
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (!o->states[k])
            continue;
        float *mine = optim_block(floats_of(pieces, n)), *to = mine;
        for (size_t i = 0; i < n; to += pieces[i++].count)
            memcpy(to, o->states[k] + pieces[i].offset, pieces[i].count * sizeof *to);
        free(o->states[k]);
        o->states[k] = mine;
    }
}

int shard_gather(struct optim *o, struct reducer *r, struct ddp_err *err)
{
    size_t n;
    const struct bucket *pieces = reducer_pieces(r, &n);
    for (int k = 0; k < OPTIM_STATES; k++) {
        if (!o->states[k])
            continue;
        if (!o->whole[k])
            o->whole[k] = optim_block(o->n);
        const float *from = o->states[k];
        for (size_t i = 0; i < n; from += pieces[i++].count)
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

int shard_step(struct optim *o, struct reducer *r, float *w, const float *g, float lr,
               struct ddp_err *err)
{
    size_t n, at = 0;
    const struct bucket *pieces = reducer_pieces(r, &n);
    optim_count(o);
    for (size_t i = 0; i < n; at += pieces[i++].count)
        optim_piece(o, at, pieces[i].count, w + pieces[i].offset, g + pieces[i].offset,
                    lr);
    return reducer_gather(r, w, err);
}
