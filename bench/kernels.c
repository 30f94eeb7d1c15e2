/* bench/kernels.c - GFLOP/s of each layer of the models, by engine
 *
 *     bench-kernels [ROUNDS [ENGINE...]]        an engine: avx2, or in bf16 avx2-bf16
 *
 * Batches of 64 of 28x28, and of 32 of 32x32 in the residual network; one thread (pin it:
 * taskset -c 0). Engines take turns within a round, so that what else the machine does
 * hits all; printed is the best of the rounds. Only the arithmetic of the definition
 * counts as work; ReLU, pooling, masks, reorders and packing cost time, as they do in
 * training. Before it is timed, each engine's result is held against the worker's.
 */
#include "bench/engines.h"
#include "common/mem.h"
#include "worker/kernels/rng.h"
#include "worker/kernels/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { B = 64, B_RESIDUAL = 32, MOST = 8 };

#define RESIDUAL(c, size, k, step)                                              \
    {                                                                           \
        B_RESIDUAL, c, size, size, k, 3, .stride = step, .pad = 1, .bare = true \
    }

static const struct layer {
    const char *name;
    struct linear_shape linear; /* K is 0 in a convolution */
    struct conv_shape conv;
} layers[] = {
    {"conv1 1x28x28 -> 32, 3x3", {0}, {B, 1, 28, 28, 32, 3, .first = true}},
    {"conv2 32x26x26 -> 64, pool",
     {0},
     {B, 32, 26, 26, 64, 3, .pool = true, .last = true}},
    {"cnn fc1 9216 -> 128", {B, 9216, 128, true}, {0}},
    {"mlp fc1 784 -> 512", {B, 784, 512, true}, {0}},
    {"mlp fc2 512 -> 512", {B, 512, 512, true}, {0}},
    {"mlp fc3 512 -> 10", {B, 512, 10, false}, {0}},
    {"resnet 64x32x32", {0}, RESIDUAL(64, 32, 64, 1)},
    {"resnet 128x16x16", {0}, RESIDUAL(128, 16, 128, 1)},
    {"resnet 256x8x8", {0}, RESIDUAL(256, 8, 256, 1)},
    {"resnet 512x4x4", {0}, RESIDUAL(512, 4, 512, 1)},
    {"resnet 256x8x8 -> 512x4x4", {0}, RESIDUAL(256, 8, 512, 2)},
};

struct bench { /* one layer in one engine */
    const struct kernels *k;
    struct linear_plan *linear;
    struct conv_plan *conv;
    struct scratches memory; /* of the plan */
    float *x, *w, *bias, *y, *dy, *dw, *dbias, *dx;
    size_t nx, nw, ny;
    int n;          /* samples */
    double best[2]; /* seconds */
};

static float *numbers(size_t n, uint64_t seed, float least)
{
    float *v = scratch(n);
    for (size_t i = 0; i < n; i++)
        v[i] = fmaxf(2 * rng_uniform(seed, i) - 1, least);
    return v;
}

static void prepare(struct bench *b, const struct layer *l, const struct kernels *k)
{
    const struct conv_shape *c = &l->conv;
    b->k = k;
    b->n = l->linear.K ? l->linear.B : c->B;
    size_t n = (size_t)b->n;
    if (l->linear.K) {
        b->linear = k->linear_plan(l->linear, &b->memory);
        b->nx = n * (size_t)l->linear.C;
        b->nw = (size_t)(l->linear.K * l->linear.C);
        b->ny = n * (size_t)l->linear.K;
    } else {
        b->conv = k->conv_plan(*c, &b->memory);
        b->nx = n * (size_t)(c->C * c->H * c->W);
        b->nw = (size_t)(c->K * c->C * c->R * c->R);
        b->ny = n * k->conv_floats(b->conv);
    }
    b->x = numbers(b->nx, 1, c->K && !c->first ? 0 : -1); /* a ReLU's output */
    b->w = numbers(b->nw, 2, -1);
    b->bias = numbers(512, 3, -1);
    b->dy = numbers(b->ny, 4, -1);
    b->y = scratch(b->ny);
    b->dw = scratch(b->nw);
    b->dbias = scratch(512);
    b->dx = scratch(b->nx);
}

static void finish(struct bench *b)
{
    scratches_free(&b->memory);
    free(b->x);
    free(b->w);
    free(b->bias);
    free(b->dy);
    free(b->y);
    free(b->dw);
    free(b->dbias);
    free(b->dx);
    *b = (struct bench){0};
}

static void forward(struct bench *b)
{
    if (b->linear)
        b->k->linear(b->linear, b->n, b->x, b->w, b->bias, b->y);
    else
        b->k->conv(b->conv, b->n, b->x, b->w, b->bias, b->y);
}

static void backward(struct bench *b, const struct layer *l)
{
    if (b->linear)
        b->k->linear_back(b->linear, b->n, b->x, b->w, b->y, b->dy, b->dw, NULL, b->dbias,
                          b->dx);
    else
        b->k->conv_back(b->conv, b->n, b->x, b->w, b->y, b->dy, b->dw, b->dbias,
                        l->conv.first ? NULL : b->dx);
}

static double work(const struct layer *l, bool back)
{
    const struct conv_shape *c = &l->conv;
    int step = c->stride ? c->stride : 1;
    double macs = (double)l->linear.K * l->linear.C * l->linear.B;
    if (c->K)
        macs = (double)c->K * c->C * c->R * c->R * c->B *
               ((c->H + 2 * c->pad - c->R) / step + 1) *
               ((c->W + 2 * c->pad - c->R) / step + 1);
    return 2 * macs * (back && !c->first ? 2 : 1);
}

/* Not a test, but a wrong engine's speed says nothing. Images between convolutions lie
 * differently in each engine, so only the linear layers can be held against each other,
 * and bf16 rounds. */
static void check(const struct layer *l, const struct bench *got,
                  const struct bench *want)
{
    float off = 0;
    if (l->conv.K || got->k->precision != want->k->precision)
        return;
    for (size_t i = 0; i < got->ny; i++)
        off = fmaxf(off, fabsf(got->y[i] - want->y[i]));
    for (size_t i = 0; i < got->nw; i++)
        off = fmaxf(off, fabsf(got->dw[i] - want->dw[i]));
    if (off > 1e-2f)
        printf("%s: '%s' is off by %g\n", l->name, got->k->name, (double)off);
}

/* The process's own time: what others take from it on a busy machine is not the kernel's.
 */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void measure(struct bench *b, const struct layer *l)
{
    for (int back = 0; back < 2; back++) {
        int64_t start = cpu_ns(), took;
        int runs = 0;
        do {
            if (back)
                backward(b, l);
            else
                forward(b);
            runs++;
            took = cpu_ns() - start;
        } while (took < 20 * 1000 * 1000);
        double each = (double)took / 1e9 / runs;
        if (b->best[back] <= 0 || each < b->best[back])
            b->best[back] = each;
    }
}

/* What products can reach: a loop of nothing but multiply-adds in registers. */
#ifdef __x86_64__
enum { SUMS = 12, TURNS = 1 << 22 };
#define PEAK(name, set, floats)                                             \
    __attribute__((target(set))) static double name(void)                   \
    {                                                                       \
        typedef float vec __attribute__((vector_size(floats * 4)));         \
        vec by = (vec){0} + 0.5f, sum[SUMS] = {by};                         \
        int64_t start = cpu_ns();                                           \
        for (int i = 0; i < TURNS; i++) {                                   \
            _Pragma("GCC unroll 12") for (int j = 0; j < SUMS; j++)         \
            {                                                               \
                sum[j] = sum[j] * by + by;                                  \
                __asm__ volatile("" : "+x"(sum[j])); /* each is computed */ \
            }                                                               \
        }                                                                   \
        return 2.0 * floats * SUMS * TURNS / (double)(cpu_ns() - start);    \
    }
PEAK(peak_avx512, "avx512f", 16)
PEAK(peak_avx2, "avx2,fma", 8)

static void print_peaks(int rounds)
{
    double wide = 0, narrow = 0;
    for (int i = 0; i < rounds; i++) {
        if (__builtin_cpu_supports("avx512f"))
            wide = fmax(wide, peak_avx512());
        if (__builtin_cpu_supports("fma"))
            narrow = fmax(narrow, peak_avx2());
    }
    printf("\nmultiply-adds only, fp32: avx512 %.1f, avx2 %.1f", wide, narrow);
}
#else
static void print_peaks(int rounds) {}
#endif

int main(int argc, char **argv)
{
    const char *all[MOST] = {"avx512", "avx2", "simd", "openblas", "onednn"};
    const struct kernels *engines[MOST];
    const char *names[MOST];
    int rounds = argc > 1 ? atoi(argv[1]) : 5, n = 0;
    if (rounds < 1) {
        fprintf(stderr, "usage: bench-kernels [ROUNDS [ENGINE...]]\n");
        return 2;
    }
    for (int i = 0; i < MOST; i++) {
        struct ddp_err err;
        const char *name = argc > 2 ? (i + 2 < argc ? argv[i + 2] : NULL) : all[i];
        names[n] = name;
        engines[n] = name ? bench_engine(name, &err) : NULL;
        n += engines[n] != NULL;
    }
    printf("%-28s %-8s", "GFLOP/s", "");
    for (int e = 0; e < n; e++)
        printf(" %9s", names[e]);
    for (const struct layer *l = layers; l < layers + ARRAY_LEN(layers); l++) {
        struct bench b[MOST] = {0};
        for (int e = 0; e < n; e++) {
            prepare(&b[e], l, engines[e]);
            forward(&b[e]);
            backward(&b[e], l);
            check(l, &b[e], &b[0]);
        }
        for (int i = 0; i < rounds * n; i++)
            measure(&b[i % n], l);
        for (int back = 0; back < 2; back++) {
            printf("\n%-28s %-8s", back ? "" : l->name, back ? "backward" : "forward");
            for (int e = 0; e < n; e++)
                printf(" %9.1f", work(l, back) / b[e].best[back] / 1e9);
        }
        for (int e = 0; e < n; e++)
            finish(&b[e]);
    }
    print_peaks(rounds);
    printf("\n");
    return 0;
}
