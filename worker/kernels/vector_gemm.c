/* worker/kernels/vector_gemm.c - matrix products of the sizes of a language model
 *
 * c is computed in tiles of TILE rows by BLOCK columns, held in registers. For DEEP
 * steps of the sum at a time, a panel of b is packed and multiplied by the rows of a,
 * which are packed for TALL rows, or more of a shorter sum, into the second-level cache:
 * each number of b is then packed once for so many rows, which costs a few percent. The
 * tile's previous contents are prefetched.
 *
 * Threads share out the panels, so results do not depend on their number. With bf16,
 * numbers are rounded, and paired along the sum, when they are packed.
 */
#include "worker/kernels/vector_tile.h"

#include "worker/kernels/pool.h"

#include <string.h>

enum { DEEP = 512, TALL = 20 * TILE_MAX, PANEL = DEEP * BLOCK };

/* One thread's buffers. */
static size_t own_room(void)
{
    return 2 * PANEL + (size_t)TALL * DEEP + VL;
}

size_t NAMED(gemm_room)(void)
{
    return own_room() * (size_t)pool_threads();
}

/* Packs rows [i, i + rows) of a, steps [k, k + deep) of the sum: tile after tile, in
 * each of them adjacent what is multiplied by the same row of b. If a has that order,
 * whole vectors are copied; the excess of a vector is overwritten by the next. */
static void pack_a(const struct gemm *g, int i, int rows, int k, int deep, float *to)
{
    float words[PER_WORD == 1 ? 1 : TILE_MAX * DEEP / PER_WORD];
    int count = words_of(deep);
    for (int j = 0, T; j < rows; j += T, to += T * count) {
        T = next_tile(rows - j, TILE);
        const float *tile =
            g->a.at + (size_t)(i + j) * g->a.row + (size_t)k * g->a.column;
        if (g->a.column == 1) {
            round_rows(T, deep, tile, g->a.row, words, DEEP / PER_WORD);
            transpose_rows(T, PER_WORD == 1 ? tile : words,
                           PER_WORD == 1 ? g->a.row : DEEP / PER_WORD, count, to);
            continue;
        }
        for (int p = 0; p < count; p++, tile += PER_WORD * g->a.column)
            for (int v = 0; v < T; v += VL)
                store(to + p * T + v,
                      words_at(tile + v, g->a.column, PER_WORD * p + 1 < deep));
    }
}

/* Packs columns [j, j + BLOCK) of b, zeros beyond the last. `words` has space for one
 * panel more. */
static void pack_b(const struct gemm *g, int j, int k, int deep, float *to, float *words)
{
    int width = at_most(BLOCK, g->N - j);
    const float *from = g->b.at + (size_t)k * g->b.row + (size_t)j * g->b.column;
    if (g->b.column == 1) {
        copy_panel(from, g->b.row, deep, g->N - j, to);
        return;
    }
    if (width < BLOCK)
        memset(to, 0, (size_t)deep * BLOCK * sizeof(float));
    round_rows(width, deep, from, g->b.column, words, DEEP);
    if (PER_WORD == 1)
        transpose(from, g->b.column, width, deep, to, BLOCK);
    else
        transpose(words, DEEP, width, words_of(deep), to, BLOCK);
}

/* A panel with all its rows; the last panel may be narrower. Meanwhile prefetches what
 * the next one is packed from (NULL: nothing), rows that are far apart in memory and that
 * another rank may have written last. */
static void run_panel(const struct gemm *g, int i, int rows, int j, int k, int deep,
                      const float *a, const float *b, const float *next)
{
    int width = at_most(BLOCK, g->N - j), count = words_of(deep);
    bool more = k > 0, add = g->add && !more;
    float bias[BLOCK];
    const float *row = g->bias && !more ? g->bias + j : NULL;
    if (row && width < BLOCK)
        row = memcpy(bias, row, (size_t)width * sizeof(float));
    for (int r = 0, at = 0, T; r < rows; r += T, a += T * count) {
        T = next_tile(rows - r, TILE);
        for (int end = (int)((long)deep * (r + T) / rows); next && at < end; at++)
            for (int line = 0; line < BLOCK; line += LINE)
                __builtin_prefetch(next + (size_t)at * g->b.row + line, 0, 2);
        float *c = g->c + (size_t)(i + r) * g->ldc + j;
        for (int t = 0; t < T; t++) {
            __builtin_prefetch(c + (size_t)t * g->ldc, 1);
            __builtin_prefetch(c + (size_t)t * g->ldc + VL, 1);
        }
        tile_rows(T, count, a, (size_t)T, b, more, add ? c : row, add ? g->ldc : 0, c,
                  g->ldc, width);
    }
}

/* Columns [from, to), in the calling thread, with its buffers. */
static void run_columns(const struct gemm *g, int from, int to, float *room)
{
    float *words = room + PANEL, *a = words + PANEL;
    int k = 0, deep;
    do {
        deep = g->K - k;
        if (deep > DEEP)
            deep = round_up(next_tile(deep, DEEP), 2);
        int tall = TALL * DEEP / (deep + 1);
        for (int i = 0, rows; i < g->M; i += rows) {
            rows = at_most(tall, g->M - i);
            pack_a(g, i, rows, k, deep, a);
            for (int j = from; j < to; j += BLOCK) {
                bool ahead = g->b.column == 1 && j + BLOCK < to;
                pack_b(g, j, k, deep, room, words);
                run_panel(g, i, rows, j, k, deep, a, room,
                          ahead ? g->b.at + (size_t)k * g->b.row + j + BLOCK : NULL);
            }
        }
        k += deep;
    } while (k < g->K);
}

void NAMED(gemm_alone)(const struct gemm *g, float *room)
{
    run_columns(g, 0, g->N, room);
}

struct call {
    const struct gemm *g;
    float *room;
};

static void gemm_part(int part, int parts, void *arg)
{
    const struct call *c = arg;
    int from, to;
    pool_share(c->g->N, BLOCK, part, parts, &from, &to);
    if (from < to)
        run_columns(c->g, from, to, c->room + (size_t)part * own_room());
}

void NAMED(gemm)(const struct gemm *g, float *room)
{
    pool_run(gemm_part, &(struct call){g, room});
}
