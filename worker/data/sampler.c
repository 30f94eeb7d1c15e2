/* worker/data/sampler.c - see sampler.h */
#include "worker/data/sampler.h"

#include "common/mem.h"
#include "worker/data/random.h"

#include <assert.h>
#include <stdlib.h>

void sampler_init(struct sampler *s, uint32_t n, int rank, int size, int batch,
                  uint64_t seed)
{
    assert(batch > 0 && rank >= 0 && rank < size);
    *s = (struct sampler){
        .n = n,
        .rank = rank,
        .size = size,
        .batch = batch,
        .seed = seed,
        .position = n,
        .order = xcalloc(n, sizeof *s->order),
        .picked = xcalloc((size_t)batch, sizeof *s->picked),
    };
}

void sampler_finish(struct sampler *s)
{
    free(s->order);
    free(s->picked);
    *s = (struct sampler){0};
}

void sampler_start(struct sampler *s, int epoch, size_t position)
{
    struct random r = random_make(s->seed, STREAM_ORDER + (uint64_t)epoch);
    for (uint32_t i = 0; i < s->n; i++)
        s->order[i] = i;
    for (uint32_t i = s->n - 1; i > 0; i--) { /* Fisher and Yates */
        uint32_t j = random_below(&r, i + 1), kept = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = kept;
    }
    s->position = position;
}

int sampler_next(struct sampler *s, int *mine)
{
    size_t left = s->position < s->n ? s->n - s->position : 0;
    size_t step = (size_t)s->size * (size_t)s->batch;
    size_t all = left < step ? left : step;
    *mine = 0;
    for (size_t i = (size_t)s->rank; i < all; i += (size_t)s->size)
        s->picked[(*mine)++] = s->order[s->position + i];
    s->position += all;
    return (int)all;
}

void sampler_shares(const struct sampler *s, int mine[2], int all[2])
{
    size_t step = (size_t)s->size * (size_t)s->batch, rest = s->n % step;
    all[0] = (int)(s->n < step ? s->n : step);
    all[1] = (int)(rest > 0 ? rest : step);
    for (int i = 0; i < 2; i++)
        mine[i] = (all[i] + s->size - 1 - s->rank) / s->size;
}

uint32_t sampler_share(uint32_t n, int rank, int size, uint32_t *first)
{
    uint32_t begin = (uint32_t)((uint64_t)n * (uint32_t)rank / (uint32_t)size);
    uint32_t end = (uint32_t)((uint64_t)n * ((uint32_t)rank + 1) / (uint32_t)size);
    *first = begin;
    return end - begin;
}
