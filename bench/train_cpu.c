/* bench/train_cpu.c - images/s of training steps, without data loading or reduction
 *
 *     bench-train_cpu MODEL BATCH SECONDS [ENGINE [THREADS]]
 *
 * Prints one line for every second that passes: images/s. Random images of 1x28x28, as
 * many batches as fit the caches badly enough (16), ten classes, SGD with momentum for
 * mlp and Adadelta for cnn, as PyTorch's own example has it. bench/train_cpu.py runs it
 * beside PyTorch.
 */
#include "bench/engines.h"
#include "common/duration.h"
#include "common/mem.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 16, PIXELS = 28 * 28 };

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
    float *x = xcalloc((size_t)BATCHES * (size_t)n * PIXELS, sizeof(float));
    uint8_t *labels = xcalloc(BATCHES, (size_t)n);
    for (int i = 0; i < BATCHES * n * PIXELS; i++)
        x[i] = rng_uniform(1, (uint64_t)i);
    for (int i = 0; i < BATCHES * n; i++)
        labels[i] = (uint8_t)(rng_word(2, (uint64_t)i) % 10);
    for (int i = 0; i < BATCHES; i++)
        r->batches[i] =
            (struct batch){.x = x + i * n * PIXELS, .labels = labels + i * n, .n = n};
}

static void step(struct run *r)
{
    int correct;
    size_t n = model_param_count(r->m);
    float *w = model_weights(r->m), *g = model_grads(r->m);
    r->loss = model_train_step(r->m, &r->batches[r->step % BATCHES], 1, 1, r->step,
                               &correct, NULL, NULL);
    r->step++;
    if (strcmp(model_type(r->m)->name, "cnn") == 0)
        r->k->adadelta(w, g, r->state[0], r->state[1], (int64_t)n, 1.0f, 0.9f, 1e-6f, 0);
    else
        r->k->sgd(w, g, r->state[0], (int64_t)n, 0.01f, 0.9f, 0);
}

int main(int argc, char **argv)
{
    struct ddp_err err = {""};
    struct run r = {0};
    if (argc < 4) {
        fprintf(stderr, "usage: train_cpu MODEL BATCH SECONDS [ENGINE [THREADS]]\n");
        return 2;
    }
    int n = atoi(argv[2]), seconds = atoi(argv[3]);
    kernels_set_threads(argc > 5 ? atoi(argv[5]) : 1);
    r.k = bench_engine(argc > 4 ? argv[4] : NULL, &err);
    if (r.k)
        r.m = model_create(argv[1], (struct io_shape){1, 28, 28, 10}, n, r.k, &err);
    if (r.m == NULL) {
        fprintf(stderr, "train_cpu: %s\n", err.text);
        return 1;
    }
    model_init(r.m, 1);
    make_batches(&r, n);
    for (int i = 0; i < 2; i++)
        r.state[i] = xcalloc(model_param_count(r.m), sizeof(float));
    step(&r);
    for (int s = 0; s < seconds; s++) {
        int64_t start = now_ns(), took;
        long images = 0;
        do {
            step(&r);
            images += n;
            took = now_ns() - start;
        } while (took < 1000000000);
        printf("%.0f\n", (double)images * 1e9 / (double)took);
        fflush(stdout);
    }
    return 0;
}
