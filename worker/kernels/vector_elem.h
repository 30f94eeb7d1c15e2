/* worker/kernels/vector_elem.h - the element type of images and products in the vector
 * engine
 *
 * A word is 32 bits in a float array: one float or, with BF16, two bfloat16 whose
 * products are added to one sum. In every sum (over channels, taps, samples or pixels)
 * neighbours share a word; loops run over words and need not know.
 *
 * AVX512-BF16 multiplies two pairs per lane in one instruction, twice the rate of
 * fp32. For other instruction sets the pairs are split, which is correct, but slower
 * than fp32.
 *
 * A pixel in the engine's layout is a BLOCK of channels: WORDS words, in their natural
 * order.
 */
#ifndef WORKER_KERNELS_VECTOR_ELEM_H
#define WORKER_KERNELS_VECTOR_ELEM_H

#include "worker/kernels/vector.h"

#include <string.h>

struct two { /* a vector for each half of a block */
    vec lo, hi;
};

ALWAYS struct two take(const float *p)
{
    return (struct two){load(p), load(p + VL)};
}

ALWAYS void put(float *p, struct two v)
{
    store(p, v.lo);
    store(p + VL, v.hi);
}

ALWAYS struct two plus(struct two a, struct two b)
{
    return (struct two){a.lo + b.lo, a.hi + b.hi};
}

ALWAYS struct two two_positive(struct two v)
{
    return (struct two){positive(v.lo), positive(v.hi)};
}

ALWAYS struct two two_where_positive(struct two y, struct two v)
{
    return (struct two){where_positive(y.lo, v.lo), where_positive(y.hi, v.hi)};
}

#if BF16

#ifdef __AVX512BF16__
#include <immintrin.h>
#define ARITHMETIC "AVX512-BF16 dot products"
#else
#define ARITHMETIC "bf16 numbers, fp32 arithmetic: no AVX512-BF16 here"
#endif
#define PRECISION PRECISION_BF16
#define PER_WORD  2
typedef uint16_t elem;

/* Rounds to the nearest, ties to even, and keeps the upper halves; NaN stays NaN. */
ALWAYS uints rounded(vec v)
{
    uints u = (uints)v, odd = (u >> 16) & 1;
    uints nearest = u + 0x7fff + odd;
    bits nan = v != v;
    return (nearest & ~(uints)nan) | ((u | 0x400000) & (uints)nan);
}

static inline elem to_elem(float f)
{
    union {
        float f;
        unsigned u;
    } v = {f};
    return (elem)((f != f ? v.u | 0x400000 : v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

/* a's in the lower, b's in the upper halves of the words */
ALWAYS vec pair(vec a, vec b)
{
#ifdef __AVX512BF16__
    static const uint16_t lanes[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    return (vec)_mm512_permutexvar_epi16(_mm512_loadu_si512(lanes), both);
#else
    return (vec)((rounded(a) >> 16) | (rounded(b) & 0xffff0000));
#endif
}

ALWAYS void store_pixel(float *words, struct two v)
{
#ifdef __AVX512BF16__
    _mm512_storeu_ps(words, (__m512)_mm512_cvtne2ps_pbh((__m512)v.hi, (__m512)v.lo));
#else
    loose_halves *to = (loose_halves *)words;
    to[0] = __builtin_convertvector(rounded(v.lo) >> 16, halves);
    to[1] = __builtin_convertvector(rounded(v.hi) >> 16, halves);
#endif
}

ALWAYS uints half_pixel(const float *words, int which) /* as numbers up to 65535 */
{
    return __builtin_convertvector(((const loose_halves *)words)[which], uints);
}

ALWAYS vec load_half(const float *words, int which)
{
    return (vec)(half_pixel(words, which) << 16);
}

/* Makes words of the channels of two adjacent pixels, in their place. */
ALWAYS void pair_pixels(float *words)
{
    uints a = half_pixel(words, 0), b = half_pixel(words, 1);
    uints c = half_pixel(words + VL, 0), d = half_pixel(words + VL, 1);
    store(words, (vec)(a | c << 16));
    store(words + VL, (vec)(b | d << 16));
}

/* sum + both products of x's pair with each lane's pair of w */
ALWAYS vec multiply_add(vec sum, float x, vec w)
{
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(x), (__m512bh)w);
#else
    union {
        float f;
        unsigned u;
    } pairs = {x}, low = {.u = pairs.u << 16}, high = {.u = pairs.u & 0xffff0000};
    sum += low.f * (vec)((uints)w << 16);
    return sum + high.f * (vec)((uints)w & 0xffff0000);
#endif
}

#else

#define ARITHMETIC "fp32"
#define PRECISION  PRECISION_FP32
#define PER_WORD   1
typedef float elem;

ALWAYS elem to_elem(float f)
{
    return f;
}

ALWAYS void store_pixel(float *words, struct two v)
{
    put(words, v);
}

ALWAYS vec load_half(const float *words, int which)
{
    return load(words + which * VL);
}

ALWAYS vec multiply_add(vec sum, float x, vec w)
{
    return sum + x * w;
}

#endif

ALWAYS struct two pixel(const float *words)
{
    return (struct two){load_half(words, 0), load_half(words, 1)};
}

/* A vector of words: of numbers of a row and, with bf16, those below them, if `both`
 * rows are there. */
ALWAYS vec words_at(const float *row, size_t ld, bool both)
{
#if BF16
    return pair(load(row), both ? load(row + ld) : (vec){0});
#else
    return load(row);
#endif
}

#define WORDS (BLOCK / PER_WORD)

/* n numbers as words; the upper half of the last may be empty. */
static inline int words_of(int n)
{
    return (n + PER_WORD - 1) / PER_WORD;
}

/* `count` columns of some rows, as words; an odd last one is paired with zero. */
ALWAYS void round_rows(int rows, int count, const float *from, size_t ldf, float *to,
                       size_t ldt)
{
#if BF16
    for (int j = 0; j < rows; j++, from += ldf, to += ldt) {
        int i = 0;
        for (; i + BLOCK <= count; i += BLOCK)
            store_pixel(to + i / 2, take(from + i));
        for (int k = i; k < round_up(count, 2); k++)
            ((elem *)to)[k] = k < count ? to_elem(from[k]) : 0;
    }
#endif
}

/* The first BLOCK of `left` columns of some rows, adjacent, zeros beyond the last. */
static inline void copy_panel(const float *from, size_t ld, int rows, int left,
                              float *panel)
{
    size_t width = (size_t)at_most(BLOCK, left), step = width < BLOCK ? BLOCK : ld;
    float narrow[PER_WORD * BLOCK] = {0};
    for (int i = 0; i < rows; i += PER_WORD, from += PER_WORD * ld, panel += BLOCK) {
        const float *row = width < BLOCK ? narrow : from;
        for (int j = 0; row == narrow && j < PER_WORD && i + j < rows; j++)
            memcpy(narrow + j * BLOCK, from + (size_t)j * ld, width * sizeof(float));
        put(panel, (struct two){words_at(row, step, i + 1 < rows),
                                words_at(row + VL, step, i + 1 < rows)});
    }
}

#endif
