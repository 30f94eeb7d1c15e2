/* worker/group/reduce.c - see reduce.h
 *
 * The loops are plain; the compiler makes vector code of them, once per instruction set,
 * and the dynamic linker picks (target_clones). Two shapes do all the work: out = a op b,
 * and for two ranks the fused x = y = (a + b) * scale, which reads and writes every byte
 * once. More operands go through a block that stays in the L1 cache. The short floats are
 * widened into such a block, so that they need no loops of their own (half.h).
 */
#include "worker/group/reduce.h"

#include "common/mem.h"
#include "worker/group/half.h"

#include <assert.h>
#include <string.h>

enum { BLOCK_BYTES = 8192 };

#define ADD(W, a, b)  ((W)(a) + (W)(b))
#define MUL(W, a, b)  ((W)(a) * (W)(b))
#define AND(W, a, b)  ((a) & (b))
#define OR(W, a, b)   ((a) | (b))
#define XOR(W, a, b)  ((a) ^ (b))
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

#define DIVIDE(name, T, W)                                    \
    CLONES static void name(void *data_, size_t n, int ranks) \
    {                                                         \
        T *data = data_;                                      \
        for (size_t i = 0; i < n; i++)                        \
            data[i] = (T)(data[i] / (W)ranks);                \
    }

#define FLOATING(T, suffix)          \
    TWO(sum_##suffix, T, T, ADD)     \
    TWO(product_##suffix, T, T, MUL) \
    TWO(max_##suffix, T, T, FMAX)    \
    TWO(min_##suffix, T, T, FMIN)    \
    DIVIDE(divide_##suffix, T, T)

/* ranks may be more than an element can hold: D is a type to divide in */
#define INTEGER(T, W, D, suffix)     \
    TWO(sum_##suffix, T, W, ADD)     \
    TWO(product_##suffix, T, W, MUL) \
    TWO(max_##suffix, T, T, IMAX)    \
    TWO(min_##suffix, T, T, IMIN)    \
    TWO(band_##suffix, T, T, AND)    \
    TWO(bor_##suffix, T, T, OR)      \
    TWO(bxor_##suffix, T, T, XOR)    \
    DIVIDE(divide_##suffix, T, D)

FLOATING(float, f32)
FLOATING(double, f64)
INTEGER(int32_t, uint32_t, int, i32)
INTEGER(int64_t, uint64_t, int64_t, i64)
INTEGER(uint8_t, unsigned, int, u8)
INTEGER(int8_t, unsigned, int, i8)

/* x = y = (a + b) * scale; x and y may be a and b */
#define FUSED(name, T)                                                          \
    CLONES static void name(void *x_, void *y_, const void *a_, const void *b_, \
                            size_t n, double scale_)                            \
    {                                                                           \
        T *x = x_, *y = y_;                                                     \
        const T *a = a_, *b = b_, scale = (T)scale_;                            \
        IVDEP for (size_t i = 0; i < n; i++)                                    \
        {                                                                       \
            T sum = (a[i] + b[i]) * scale;                                      \
            x[i] = sum;                                                         \
            y[i] = sum;                                                         \
        }                                                                       \
    }

FUSED(fused_f32, float)
FUSED(fused_f64, double)

typedef void (*two_fn)(void *out, const void *a, const void *b, size_t n);

struct element {
    const char *name;
    size_t size;
    two_fn two[8]; /* by enum ddp_op; NULL: makes no sense */
    void (*divide)(void *data, size_t n, int ranks);
    /* the short floats are folded as f32: */
    void (*widen)(float *out, const uint16_t *in, size_t n);
    void (*narrow)(uint16_t *out, const float *in, size_t n);
    /* or NULL: the scaled sum of two vectors into both */
    void (*fused)(void *x, void *y, const void *a, const void *b, size_t n, double scale);
};

#define FLOAT_OPS(s)   sum_##s, product_##s, max_##s, min_##s, sum_##s
#define INTEGER_OPS(s) FLOAT_OPS(s), band_##s, bor_##s, bxor_##s

static const struct element types[] = {
    [DDP_F32] = {"f32", 4, {FLOAT_OPS(f32)}, divide_f32, .fused = fused_f32},
    [DDP_F64] = {"f64", 8, {FLOAT_OPS(f64)}, divide_f64, .fused = fused_f64},
    [DDP_I32] = {"i32", 4, {INTEGER_OPS(i32)}, divide_i32},
    [DDP_I64] = {"i64", 8, {INTEGER_OPS(i64)}, divide_i64},
    [DDP_U8] = {"u8", 1, {INTEGER_OPS(u8)}, divide_u8},
    [DDP_F16] = {"f16", 2, {FLOAT_OPS(f32)}, divide_f32, half_widen, half_narrow},
    [DDP_BF16] = {"bf16", 2, {FLOAT_OPS(f32)}, divide_f32, bf16_widen, bf16_narrow},
    [DDP_I8] = {"i8", 1, {INTEGER_OPS(i8)}, divide_i8},
};

static const char *const op_names[] = {"sum", "product", "max", "min",
                                       "avg", "band",    "bor", "bxor"};

size_t type_size(enum ddp_type type)
{
    return types[type].size;
}

const char *type_name(enum ddp_type type)
{
    return (size_t)type < ARRAY_LEN(types) ? types[type].name : "?";
}

const char *op_name(enum ddp_op op)
{
    return (size_t)op < ARRAY_LEN(op_names) ? op_names[op] : "?";
}

bool reduce_known(enum ddp_type type, enum ddp_op op)
{
    return (size_t)type < ARRAY_LEN(types) && (size_t)op < ARRAY_LEN(op_names);
}

bool reduce_sensible(enum ddp_type type, enum ddp_op op)
{
    return types[type].two[op] != NULL;
}

/* n elements of a vector, from `at` on; the short floats widened into `room`. */
static const void *operand(const struct element *t, const void *in, size_t at, size_t n,
                           void *room)
{
    if (!t->widen)
        return (const char *)in + at * t->size;
    t->widen(room, (const uint16_t *)in + at, n);
    return room;
}

static void fold(void *const *out, int nout, const void *const *in, int nin, size_t count,
                 const struct element *t, enum ddp_op op, int ranks)
{
    _Alignas(64) char block[BLOCK_BYTES], next[BLOCK_BYTES];
    size_t room = BLOCK_BYTES / (t->widen ? sizeof(float) : t->size);
    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < room ? count - at : room;
        const void *left = operand(t, in[0], at, n, block);
        for (int i = 1; i < nin; i++) {
            t->two[op](block, left, operand(t, in[i], at, n, next), n);
            left = block;
        }
        if (op == DDP_AVG && ranks > 1) {
            if (left != block)
                left = memcpy(block, left, n * t->size);
            t->divide(block, n, ranks);
        }
        for (int j = 0; j < nout; j++) {
            if (t->narrow)
                t->narrow((uint16_t *)out[j] + at, left, n);
            else
                memmove((char *)out[j] + at * t->size, left, n * t->size);
        }
    }
}

void reduce_finish(void *data, size_t count, enum ddp_type type, enum ddp_op op,
                   int ranks)
{
    const struct element *t = &types[type];
    if (op != DDP_AVG || ranks <= 1)
        return;
    if (t->widen)
        fold(&data, 1, (const void *[]){data}, 1, count, t, op, ranks);
    else
        t->divide(data, count, ranks);
}

void reduce_many(void *const *out, int nout, const void *const *in, int nin, size_t count,
                 enum ddp_type type, enum ddp_op op, int ranks)
{
    const struct element *t = &types[type];
    assert(nin >= 1 && nout >= 1);
    bool sums = op == DDP_SUM || (op == DDP_AVG && (ranks == 0 || ranks == 2));
    if (nout == 2 && nin == 2 && t->fused && sums) /* halving is exact */
        t->fused(out[0], out[1], in[0], in[1], count, op == DDP_AVG && ranks ? 0.5 : 1.0);
    else if (nout == 1 && nin == 2 && !t->widen && (op != DDP_AVG || ranks <= 1))
        t->two[op](out[0], in[0], in[1], count);
    else
        fold(out, nout, in, nin, count, t, op, ranks);
}

void reduce_two(void *out, const void *a, const void *b, size_t count, enum ddp_type type,
                enum ddp_op op)
{
    reduce_many(&out, 1, (const void *[]){a, b}, 2, count, type, op, 0);
}
