/* bench/train_cpu.c - images/s of training steps, without data loading or reduction
 *
 *     bench-train_cpu MODEL BATCH SECONDS [ENGINE [THREADS]]
 *
 * Prints one line for every second of CPU time (with several threads: of wall time), so
 * that what else runs on the machine costs little: images/s. Random images of 1x28x28, or
 * 3x32x32 for resnet18, as many batches as fit the caches badly enough (16), ten classes,
 * Adadelta for cnn, as PyTorch's own example has it, and SGD with momentum for the
 * others. gpt2 and llama have 64 tokens a sample and AdamW, and print tokens/s.
 * bench/train_cpu.py runs it beside PyTorch.
 */
#include "bench/engines.h"
#include "common/mem.h"
#include "tests/worker/nn/train_step.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/rng.h"
#include "worker/kernels/scratch.h"
#include "worker/nn/model.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 16, TOKENS = 64 };

struct run {
    const struct kernels *k;
    struct model *m;
    struct batch batches[BATCHES];
    float *state[2];
    uint64_t step;
    float loss;
};

static void make_batches(struct run *r, int n)
{
    const struct io_shape io = r->m->io;
    int each = n * io.C * io.H * io.W;
    float *x = xcalloc((size_t)BATCHES * (size_t)each, sizeof(float));
    uint32_t *labels = xcalloc(BATCHES * (size_t)n, sizeof *labels);
    uint32_t *tokens = xcalloc(BATCHES, (size_t)(each + n) * sizeof *tokens);
    for (int i = 0; i < BATCHES * (each + n); i++)
        tokens[i] = (uint32_t)(rng_word(3, (uint64_t)i) % (uint64_t)io.outputs);
    for (int i = 0; i < BATCHES * each; i++)
        x[i] = rng_uniform(1, (uint64_t)i);
    for (int i = 0; i < BATCHES * n; i++)
        labels[i] = (uint32_t)(rng_word(2, (uint64_t)i) % 10);
    for (int i = 0; i < BATCHES; i++)
        r->batches[i] = (struct batch){.x = x + i * each,
                                       .labels = labels + i * n,
                                       .tokens = tokens + i * (each + n),
                                       .n = n};
}

static void step(struct run *r)
{
    struct update u = {.rule = RULE_SGD,
                       .w = r->m->weights,
                       .m = r->state[0],
                       .v = r->state[1],
                       .g = model_grads(r->m),
                       .n = (int64_t)r->m->count,
                       .lr = 0.01f,
                       .b1 = 0.9f};
    r->loss =
        train_step(r->m, (struct model_pass){.batch = &r->batches[r->step % BATCHES],
                                             .scale = 1,
                                             .seed = 1,
                                             .draw = r->step});
    r->step++;
    if (strcmp(r->m->type->name, "cnn") == 0) {
        u.rule = RULE_ADADELTA;
        u.lr = 1;
        u.eps = 1e-6f;
    } else if (r->m->type->task == TASK_TOKENS) {
        u.rule = RULE_ADAM;
        u.lr = 1e-4f;
        u.b2 = 0.999f;
        u.eps = 1e-8f;
        u.keep = 1 - 1e-6f;
        u.step = (int64_t)r->step;
    }
    r->k->update(u);
}

static int64_t clock_ns(bool threads)
{
    struct timespec t;
    clock_gettime(threads ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv)
{
    struct ddp_err err = {""};
    struct run r = {0};
    if (argc < 4) {
        fprintf(stderr, "usage: train_cpu MODEL BATCH SECONDS [ENGINE [THREADS]]\n");
        return 2;
    }
    int n = atoi(argv[2]), seconds = atoi(argv[3]),
        threads = argc > 5 ? atoi(argv[5]) : 1;
    bool gpt2 = strncmp(argv[1], "gpt2", 4) == 0;
    bool text = gpt2 || strncmp(argv[1], "llama", 5) == 0;
    pool_set(threads);
    r.k = bench_engine(argc > 4 ? argv[4] : NULL, &err);
    if (r.k)
        r.m = model_create(argv[1],
                           strcmp(argv[1], "resnet18") == 0
                               ? (struct io_shape){3, 32, 32, 10}
                           : text ? (struct io_shape){1, 1, TOKENS, gpt2 ? 50257 : 49152}
                                  : (struct io_shape){1, 28, 28, 10},
                           n, r.k, &err);
    if (r.m == NULL) {
        fprintf(stderr, "train_cpu: %s\n", err.text);
        return 1;
    }
    model_init(r.m, 1);
    make_batches(&r, n);
    for (int i = 0; i < 2; i++)
        r.state[i] = scratch(r.m->count);
    step(&r);
    for (int s = 0; s < seconds; s++) {
        int64_t start = clock_ns(threads > 1), took;
        long images = 0;
        do {
            step(&r);
            images += text ? n * TOKENS : n;
            took = clock_ns(threads > 1) - start;
        } while (took < 1000000000);
        printf("%.0f\n", (double)images * 1e9 / (double)took);
        fflush(stdout);
    }
    return 0;
}
