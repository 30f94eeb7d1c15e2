/* The arithmetic: wrap-around, NaN, order, aliasing, every length around a vector. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/group/half.h"
#include "worker/group/reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TEST(integers_wrap_around)
{
    int32_t a[] = {INT32_MAX, INT32_MIN, 65536}, b[] = {1, -1, 65536}, out[3];
    reduce_two(out, a, b, 3, DDP_I32, DDP_SUM);
    ck_assert_int_eq(out[0], INT32_MIN);
    ck_assert_int_eq(out[1], INT32_MAX);
    reduce_two(out, a, b, 3, DDP_I32, DDP_PRODUCT);
    ck_assert_int_eq(out[2], 0);
    uint8_t x[] = {200, 16}, y[] = {100, 16}, z[2];
    reduce_two(z, x, y, 2, DDP_U8, DDP_SUM);
    ck_assert_int_eq(z[0], 44);
    reduce_two(z, x, y, 2, DDP_U8, DDP_PRODUCT);
    ck_assert_int_eq(z[1], 0);
    int64_t p[] = {INT64_MAX}, q[] = {2};
    reduce_two(p, p, q, 1, DDP_I64, DDP_PRODUCT);
    ck_assert_int_eq(p[0], -2);
}

TEST(nan_is_seen_by_max_and_min)
{
    double a[] = {NAN, 1.0, 2.0, -0.5}, b[] = {1.0, NAN, 1.0, 0.5}, out[4];
    reduce_two(out, a, b, 4, DDP_F64, DDP_MAX);
    ck_assert(isnan(out[0]) && isnan(out[1]));
    ck_assert_double_eq(out[2], 2.0);
    ck_assert_double_eq(out[3], 0.5);
    reduce_two(out, a, b, 4, DDP_F64, DDP_MIN);
    ck_assert(isnan(out[0]) && isnan(out[1]));
    ck_assert_double_eq(out[2], 1.0);
    ck_assert_double_eq(out[3], -0.5);
}

/* The division is the last thing: of 3 it is correctly rounded, of integers truncated. */
TEST(an_average_is_divided_once)
{
    double a = 1.0, b = 0.0, c = 0.0, out;
    const void *in[] = {&a, &b, &c};
    void *outs[] = {&out};
    reduce_many(outs, 1, in, 3, 1, DDP_F64, DDP_AVG, 3);
    ck_assert(out == 1.0 / 3.0);
    reduce_many(outs, 1, in, 3, 1, DDP_F64, DDP_AVG, 0);
    ck_assert(out == 1.0);
    int32_t i = -7, j = 0, k;
    const void *ints[] = {&i, &j};
    outs[0] = &k;
    reduce_many(outs, 1, ints, 2, 1, DDP_I32, DDP_AVG, 2);
    ck_assert_int_eq(k, -3);
    uint8_t u = 200;
    reduce_finish(&u, 1, DDP_U8, DDP_AVG, 300);
    ck_assert_int_eq(u, 0);
}

/* Left to right, the same bits wherever the results go and however long the vectors. */
LOOP_TEST(the_order_is_that_of_the_operands, 4)
{
    enum { MAX = 5000, N = 4 };
    static const size_t lengths[] = {0,  1,  2,  3,  15,   16,   17,
                                     31, 33, 63, 65, 2047, 2049, MAX};
    int nin = 1 + _i;
    float *in[N], *out[N], want[MAX];
    for (int i = 0; i < N; i++)
        in[i] = xcalloc(MAX, sizeof(float));
    for (size_t l = 0; l < ARRAY_LEN(lengths); l++) {
        size_t n = lengths[l];
        for (int i = 0; i < N; i++) {
            for (size_t k = 0; k < n; k++)
                in[i][k] = (float)(drand48() - 0.5) * (k % 2 ? 1e6f : 1.0f);
        }
        for (size_t k = 0; k < n; k++) {
            want[k] = in[0][k];
            for (int i = 1; i < nin; i++)
                want[k] += in[i][k];
        }
        memcpy(out, in, sizeof out); /* in place, into all */
        reduce_many((void *const *)out, nin, (const void *const *)in, nin, n, DDP_F32,
                    DDP_SUM, 0);
        for (int i = 0; i < nin; i++)
            ck_assert_mem_eq(out[i], want, n * sizeof(float));
    }
    for (int i = 0; i < N; i++)
        free(in[i]);
}

/* Every binary16 survives widening and narrowing; ties go to even, the rest saturates. */
TEST(short_floats_are_rounded_to_the_nearest)
{
    static const struct {
        float f;
        uint16_t half, bf;
    } cases[] = {
        {1.0f, 0x3c00, 0x3f80},
        {-2.0f, 0xc000, 0xc000},
        {1.0f + 0x1p-11f, 0x3c00, 0x3f80}, /* a tie: down to even */
        {1.0f + 0x3p-11f, 0x3c02, 0x3f80}, /* a tie: up to even */
        {1.0f + 0x1p-8f, 0x3c04, 0x3f80},  /* a tie of bfloat16 */
        {1.0f + 0x3p-8f, 0x3c0c, 0x3f82},
        {65519.0f, 0x7bff, 0x4780},
        {65520.0f, 0x7c00, 0x4780},
        {0x1p-24f, 0x0001, 0x3380},
        {0x1p-25f, 0x0000, 0x3300}, /* half of the smallest */
        {0x1.8p-24f, 0x0002, 0x33c0},
        {INFINITY, 0x7c00, 0x7f80},
        {-0.0f, 0x8000, 0x8000},
    };
    for (size_t n = 1; n <= 9; n += 8) { /* alone, and where vectors do it */
        for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
            float f[9];
            uint16_t half[9], bf[9];
            for (size_t i = 0; i < n; i++)
                f[i] = cases[c].f;
            half_narrow(half, f, n);
            bf16_narrow(bf, f, n);
            ck_assert_msg(half[0] == cases[c].half && half[n - 1] == cases[c].half,
                          "%a is %#x", (double)cases[c].f, half[0]);
            ck_assert_msg(bf[0] == cases[c].bf && bf[n - 1] == cases[c].bf, "%a is %#x",
                          (double)cases[c].f, bf[0]);
        }
    }
    for (unsigned h = 0; h < 0x10000; h++) {
        uint16_t in[8], out[8], one;
        float f[8], g;
        for (int i = 0; i < 8; i++)
            in[i] = (uint16_t)h;
        half_widen(f, in, 8);
        half_widen(&g, in, 1);
        half_narrow(out, f, 8);
        half_narrow(&one, &g, 1);
        bool nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff);
        ck_assert(nan ? isnan(f[3]) && isnan(g) : f[3] == g);
        ck_assert_uint_eq(out[7], nan ? h | 0x200 : h);
        ck_assert_uint_eq(one, out[7]);
    }
}

TEST(bits_of_integers)
{
    uint8_t a[] = {0xf0, 0x0f}, b[] = {0x3c, 0x3c}, out[2];
    reduce_two(out, a, b, 2, DDP_U8, DDP_BAND);
    ck_assert_int_eq(out[0], 0x30);
    reduce_two(out, a, b, 2, DDP_U8, DDP_BOR);
    ck_assert_int_eq(out[1], 0x3f);
    reduce_two(out, a, b, 2, DDP_U8, DDP_BXOR);
    ck_assert_int_eq(out[0], 0xcc);
    int8_t x = 100, y = 100, z;
    reduce_two(&z, &x, &y, 1, DDP_I8, DDP_SUM);
    ck_assert_int_eq(z, -56);
    ck_assert(!reduce_sensible(DDP_BF16, DDP_BAND) && reduce_sensible(DDP_I64, DDP_BAND));
}
