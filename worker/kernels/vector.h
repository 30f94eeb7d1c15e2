/* worker/kernels/vector.h - shared by the files of the vector engine
 *
 * The engine is written once, with the compiler's vectors of VL floats, and compiled
 * for each instruction set: meson passes VL and ENGINE, the name that is part of every
 * symbol and of the table. No intrinsics: the same source gives AVX-512, AVX2, SSE2
 * and NEON.
 *
 * All hot loops use one scheme, an outer product held in registers: T scalars at a
 * distance of `step` are each multiplied by two vectors, with 2*T sums in all. A
 * scalar costs one broadcast load for two multiply-adds, so that loads are not the
 * bottleneck, and 2*T independent sums hide the latency. T is a constant in each copy
 * of a loop; TILE is the largest for which the registers suffice. UNROLL_2 halves the
 * instructions of the loop itself, which cost a tenth of the time while another thread
 * shares the core.
 *
 * Rows are split into tiles of nearly equal size, not into full ones and a remainder.
 *
 * With -DBF16 the same source gives the engine that computes in bfloat16, see
 * vector_elem.h.
 */
#ifndef WORKER_KERNELS_VECTOR_H
#define WORKER_KERNELS_VECTOR_H

#include "worker/kernels/tables.h"

#if BF16
#define TABLE JOIN(ENGINE, bf16)
#else
#define TABLE ENGINE
#endif
#define NAMED(what) JOIN(TABLE, what) /* avx2_conv, avx2_bf16_conv */
#define TEXT_(x)    #x
#define TEXT(x)     TEXT_(x)
#define ALWAYS      static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL   _Pragma("clang loop unroll(full)")
#define UNROLL_2 _Pragma("clang loop unroll_count(2)")
#else
#define UNROLL   _Pragma("GCC unroll 36")
#define UNROLL_2 _Pragma("GCC unroll 2")
#endif

/* 32 registers: 26 sums, two vectors, the scalars; 16 registers: 12 sums. */
#define TILE     (VL == 16 ? 13 : 6)
#define TILE_MAX 13
#define BLOCK    (2 * VL) /* channels stored together in the engine's own layout */
#define LINE     16       /* floats of a cache line */

typedef float vec __attribute__((vector_size(VL * 4)));
typedef int bits __attribute__((vector_size(VL * 4)));
typedef float loose __attribute__((vector_size(VL * 4), aligned(4), may_alias));

typedef unsigned uints __attribute__((vector_size(VL * 4)));
typedef uint16_t halves __attribute__((vector_size(VL * 2)));
typedef uint16_t loose_halves __attribute__((vector_size(VL * 2), aligned(2), may_alias));
typedef uint8_t byte_lanes __attribute__((vector_size(VL)));
typedef uint8_t loose_byte_lanes __attribute__((vector_size(VL), aligned(1), may_alias));

ALWAYS vec load(const float *p)
{
    return *(const loose *)p;
}

ALWAYS void store(float *p, vec v)
{
    *(loose *)p = v;
}

ALWAYS vec pick(bits which, vec a, vec b) /* a where `which` is all ones, else b */
{
    return (vec)(((bits)a & which) | ((bits)b & ~which));
}

ALWAYS vec positive(vec v) /* 0 where v < 0; NaN stays NaN, so that it is noticed */
{
    return (vec)((bits)v & ~(v < (vec){0}));
}

ALWAYS vec where_positive(vec y, vec v) /* v where y > 0, else 0 */
{
    return (vec)((bits)v & (y > (vec){0}));
}

/* Calls f(T, ...) for a T that is known at run time only. */
#define WITH_TILE(T, f, ...)                   \
    do {                                       \
        switch (T) {                           \
            TILE_CASES_TO_6(f, __VA_ARGS__)    \
            TILE_CASES_ABOVE_6(f, __VA_ARGS__) \
        }                                      \
    } while (0)
#define TILE_CASE(t, f, ...) \
    case t:                  \
        f(t, __VA_ARGS__);   \
        break;
#define TILE_CASES_TO_6(f, ...)  \
    TILE_CASE(1, f, __VA_ARGS__) \
    TILE_CASE(2, f, __VA_ARGS__) \
    TILE_CASE(3, f, __VA_ARGS__) \
    TILE_CASE(4, f, __VA_ARGS__) \
    TILE_CASE(5, f, __VA_ARGS__) \
    TILE_CASE(6, f, __VA_ARGS__)
#if VL == 16
#define TILE_CASES_ABOVE_6(f, ...) \
    TILE_CASE(7, f, __VA_ARGS__)   \
    TILE_CASE(8, f, __VA_ARGS__)   \
    TILE_CASE(9, f, __VA_ARGS__)   \
    TILE_CASE(10, f, __VA_ARGS__)  \
    TILE_CASE(11, f, __VA_ARGS__)  \
    TILE_CASE(12, f, __VA_ARGS__)  \
    TILE_CASE(13, f, __VA_ARGS__)
#else
#define TILE_CASES_ABOVE_6(f, ...)
#endif

/* The size of the next tile when `left` positions are shared out evenly. */
static inline int next_tile(int left, int most)
{
    int tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

static inline int at_most(int a, int b)
{
    return a < b ? a : b;
}

static inline int at_least(int a, int b)
{
    return a > b ? a : b;
}

static inline int round_up(int n, int unit)
{
    return (n + unit - 1) / unit * unit;
}

/* to[c][r] = from[r][c], rows x cols; the leading sizes are in floats. */
#define transpose NAMED(transpose)
void transpose(const float *from, size_t ldf, int rows, int cols, float *to, size_t ldt);
/* The same without gaps: to[c][r], and up to a vector behind it is overwritten. */
#define transpose_rows NAMED(transpose_rows)
void transpose_rows(int rows, const float *from, size_t ldf, int cols, float *to);

extern const struct kernels NAMED(kernels);

LAYER_KERNELS(DECLARE_KERNEL, TABLE)
PRODUCT_KERNELS(DECLARE_KERNEL, TABLE)
SEQUENCE_KERNELS(DECLARE_KERNEL, ENGINE)
/* dropout() in the calling thread. */
void NAMED(drop)(float *y, int64_t n, float p, uint64_t key);
/* gemm() in the calling thread, with one thread's part of its scratch memory. */
void NAMED(gemm_alone)(const struct gemm *g, float *room);

#endif
