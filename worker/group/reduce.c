/* worker/group/reduce.c - see reduce.h
 *
 * The loops are plain; the compiler makes vector code of them, once per instruction set,
 * and the dynamic linker picks (target_clones). Two shapes do all the work: out = a op b,
 * and for two ranks the fused x = y = (a + b) * scale, which reads and writes every byte
 * once. More operands go through a block that stays in the L1 cache.
 */
#include "worker/group/reduce.h"

#include "common/mem.h"

#include <assert.h>
#include <string.h>

enum { BLOCK_BYTES = 8192 };

/* A sanitizer's runtime is not there yet when the resolver of a clone runs. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define CLONES
#endif

#define ADD(W, a, b)  ((W)(a) + (W)(b))
#define MUL(W, a, b)  ((W)(a) * (W)(b))
#define IMAX(W, a, b) ((a) > (b) ? (a) : (b))
#define IMIN(W, a, b) ((a) < (b) ? (a) : (b))
#define FMAX(W, a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define FMIN(W, a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

/* No iteration depends on another one. */
#ifdef __clang__
#define IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define IVDEP _Pragma("GCC ivdep")
#endif

/* W is the type to compute in: unsigned for integers, where overflow wraps. No restrict:
 * out may be a or b, element for element, which keeps the vectorised loop right. */
#define TWO(name, T, W, OP)                                                       \
    CLONES static void name(void *out_, const void *a_, const void *b_, size_t n) \
    {                                                                             \
        T *out = out_;                                                            \
        const T *a = a_, *b = b_;                                                 \
        IVDEP for (size_t i = 0; i < n; i++) out[i] = (T)(OP(W, a[i], b[i]));     \
    }

#define TYPE(T, W, suffix, MAX, MIN) \
    TWO(sum_##suffix, T, W, ADD)     \
    TWO(product_##suffix, T, W, MUL) \
    TWO(max_##suffix, T, T, MAX)     \
    TWO(min_##suffix, T, T, MIN)

TYPE(float, float, f32, FMAX, FMIN)
TYPE(double, double, f64, FMAX, FMIN)
TYPE(int32_t, uint32_t, i32, IMAX, IMIN)
TYPE(int64_t, uint64_t, i64, IMAX, IMIN)
TYPE(uint8_t, unsigned, u8, IMAX, IMIN)

/* x = y = (a + b) * scale; x and y may be a and b */
#define FUSED(name, T)                                                          \
    CLONES static void name(void *x_, void *y_, const void *a_, const void *b_, \
                            size_t n, T scale)                                  \
    {                                                                           \
        T *x = x_, *y = y_;                                                     \
        const T *a = a_, *b = b_;                                               \
        IVDEP for (size_t i = 0; i < n; i++)                                    \
        {                                                                       \
            T sum = (a[i] + b[i]) * scale;                                      \
            x[i] = sum;                                                         \
            y[i] = sum;                                                         \
        }                                                                       \
    }

FUSED(fused_f32, float)
FUSED(fused_f64, double)

#define DIVIDE(name, T)                                       \
    CLONES static void name(void *data_, size_t n, int ranks) \
    {                                                         \
        T *data = data_;                                      \
        for (size_t i = 0; i < n; i++)                        \
            data[i] = (T)(data[i] / (T)ranks);                \
    }

DIVIDE(divide_f32, float)
DIVIDE(divide_f64, double)
DIVIDE(divide_i32, int32_t)
DIVIDE(divide_i64, int64_t)

static void divide_u8(void *data_, size_t n, int ranks)
{
    uint8_t *data = data_;
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)(data[i] / ranks); /* ranks may be more than 255 */
}

typedef void (*two_fn)(void *out, const void *a, const void *b, size_t n);

static const struct {
    const char *name;
    size_t size;
    two_fn two[5]; /* by enum ddp_op */
    void (*divide)(void *data, size_t n, int ranks);
} types[] = {
    [DDP_F32] = {"f32", 4, {sum_f32, product_f32, max_f32, min_f32, sum_f32}, divide_f32},
    [DDP_F64] = {"f64", 8, {sum_f64, product_f64, max_f64, min_f64, sum_f64}, divide_f64},
    [DDP_I32] = {"i32", 4, {sum_i32, product_i32, max_i32, min_i32, sum_i32}, divide_i32},
    [DDP_I64] = {"i64", 8, {sum_i64, product_i64, max_i64, min_i64, sum_i64}, divide_i64},
    [DDP_U8] = {"u8", 1, {sum_u8, product_u8, max_u8, min_u8, sum_u8}, divide_u8},
};

size_t type_size(enum ddp_type type)
{
    return types[type].size;
}

const char *type_name(enum ddp_type type)
{
    return types[type].name;
}

const char *op_name(enum ddp_op op)
{
    static const char *const names[] = {"sum", "product", "max", "min", "avg"};
    return names[op];
}

void reduce_two(void *out, const void *a, const void *b, size_t count, enum ddp_type type,
                enum ddp_op op)
{
    types[type].two[op](out, a, b, count);
}

void reduce_finish(void *data, size_t count, enum ddp_type type, enum ddp_op op,
                   int ranks)
{
    if (op == DDP_AVG && ranks > 1)
        types[type].divide(data, count, ranks);
}

/* The sum of two float vectors into both; halving is exact, so DDP_AVG may multiply. */
static bool fused(void *const *out, int nout, const void *const *in, int nin,
                  size_t count, enum ddp_type type, enum ddp_op op, int ranks)
{
    if (nin != 2 || nout != 2 || (op != DDP_SUM && op != DDP_AVG) ||
        (op == DDP_AVG && ranks != 2 && ranks != 0))
        return false;
    bool halve = op == DDP_AVG && ranks == 2;
    if (type == DDP_F32)
        fused_f32(out[0], out[1], in[0], in[1], count, halve ? 0.5f : 1.0f);
    else if (type == DDP_F64)
        fused_f64(out[0], out[1], in[0], in[1], count, halve ? 0.5 : 1.0);
    else
        return false;
    return true;
}

void reduce_many(void *const *out, int nout, const void *const *in, int nin, size_t count,
                 enum ddp_type type, enum ddp_op op, int ranks)
{
    assert(nin >= 1 && nout >= 1);
    if (fused(out, nout, in, nin, count, type, op, ranks))
        return;
    _Alignas(64) char block[BLOCK_BYTES];
    size_t size = types[type].size, room = BLOCK_BYTES / size;
    for (size_t at = 0; at < count; at += room) {
        size_t n = count - at < room ? count - at : room, skip = at * size;
        const char *left = (const char *)in[0] + skip;
        for (int i = 1; i < nin; i++) {
            types[type].two[op](block, left, (const char *)in[i] + skip, n);
            left = block;
        }
        if (op == DDP_AVG && ranks > 1) {
            if (left != block)
                left = memcpy(block, left, n * size);
            types[type].divide(block, n, ranks);
        }
        for (int j = 0; j < nout; j++)
            memmove((char *)out[j] + skip, left, n * size);
    }
}
