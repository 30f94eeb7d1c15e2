/* worker/group/half.c - see half.h
 *
 * bfloat16 is the upper half of a float, and the compiler's vector code is as fast as
 * memory. binary16 has instructions of its own since 2012 (F16C); where they are missing,
 * and for the last few elements, integers do it.
 */
#include "worker/group/half.h"

#include <stdbool.h>
#include <string.h>

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* ---- bfloat16 ---- */

CLONES void bf16_widen(float *out, const uint16_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = float_of((uint32_t)in[i] << 16);
}

CLONES void bf16_narrow(uint16_t *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bits_of(in[i]);
        uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
        uint32_t nan = u >> 16 | 0x40;
        out[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
    }
}

/* ---- binary16: 1 sign, 5 exponent (bias 15), 10 mantissa ---- */

static inline float widen_one(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, m = h & 1023;
    if (exponent == 0) { /* a multiple of 2^-24, exactly */
        float f = (float)m * 0x1p-24f;
        return float_of(sign | bits_of(f));
    }
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | (m ? 0x400000 : 0) | m << 13);
    return float_of(sign | (exponent + 127 - 15) << 23 | m << 13);
}

static inline uint16_t narrow_one(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* 65520: half way above the largest */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) /* below 2^-14 the spacing is 2^-24, as it is above one half */
        return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | ((a + 0xfff + (a >> 13 & 1)) - 0x38000000) >> 13);
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx,f16c"))) static size_t widen_by_8(float *out,
                                                             const uint16_t *in, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(in + i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(h));
    }
    return i;
}

__attribute__((target("avx,f16c"))) static size_t narrow_by_8(uint16_t *out,
                                                              const float *in, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(out + i), h);
    }
    return i;
}

static bool has_instructions(void)
{
    /* such a processor has F16C, too, of which clang 14 cannot ask */
    return __builtin_cpu_supports("avx2");
}
#else
#define has_instructions()      false
#define widen_by_8(out, in, n)  0
#define narrow_by_8(out, in, n) 0
#endif

void half_widen(float *out, const uint16_t *in, size_t n)
{
    size_t i = has_instructions() ? widen_by_8(out, in, n) : 0;
    for (; i < n; i++)
        out[i] = widen_one(in[i]);
}

void half_narrow(uint16_t *out, const float *in, size_t n)
{
    size_t i = has_instructions() ? narrow_by_8(out, in, n) : 0;
    for (; i < n; i++)
        out[i] = narrow_one(in[i]);
}
