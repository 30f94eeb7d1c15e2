/* parity MODEL C H W OUTPUTS N STEPS OPTIMISER ENGINE FILE - a short training for
 * parity.py to repeat
 *
 * Dropout is off. FILE gets, as float32: the initial weights, the inputs of all steps,
 * the targets (or labels as floats), the first step's gradients, the weights after the
 * last step, the outputs for the first batch with those weights, the loss of each step.
 * Standard output gets the parameters: NAME DIM,DIM,... a line. */
#include "tests/worker/nn/train_step.h"

#include "common/mem.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *out;

static void put(const float *v, size_t n)
{
    if (fwrite(v, sizeof(*v), n, out) != n) {
        perror("parity");
        exit(1);
    }
}

static void optimise(const struct kernels *k, const char *name, struct model *m,
                     float *state[2], int step)
{
    struct update u = {.w = m->weights,
                       .m = state[0],
                       .v = state[1],
                       .g = model_grads(m),
                       .n = (int64_t)m->count,
                       .lr = strcmp(name, "sgd") == 0 ? 0.05f : 1e-3f,
                       .decay = 1e-3f,
                       .b1 = 0.9f,
                       .b2 = 0.999f,
                       .eps = 1e-8f,
                       .keep = 1,
                       .step = step};
    if (strcmp(name, "adam") == 0) {
        u.rule = RULE_ADAM;
    } else if (!strstr(name, "sgd")) {
        u.rule = RULE_ADADELTA;
        u.lr = 1;
        u.eps = 1e-6f;
    }
    k->update(u);
}

static void print_params(const struct model *m)
{
    const struct param *p = m->params;
    size_t n = m->nparams;
    for (; n > 0; n--, p++) {
        printf("%s ", p->name);
        for (int d = 0; d < p->ndim; d++)
            printf("%d%s", p->dims[d], d + 1 < p->ndim ? "," : "\n");
    }
}

static void train(struct model *m, const struct kernels *k, const char *optimiser,
                  struct io_shape io, int n, int steps)
{
    size_t count = m->count, in = (size_t)(io.C * io.H * io.W * n);
    size_t outputs = (size_t)(m->type->task == TASK_CLASSIFY ? n : n * io.outputs);
    float *x = xcalloc(in * (size_t)steps, sizeof(float));
    float *targets = xcalloc(outputs * (size_t)steps, sizeof(float));
    float *loss = xcalloc((size_t)steps, sizeof(float));
    float *state[2] = {xcalloc(count, sizeof(float)), xcalloc(count, sizeof(float))};
    uint32_t *labels = xcalloc(outputs * (size_t)steps, sizeof *labels);
    for (size_t i = 0; i < in * (size_t)steps; i++)
        x[i] = 2 * rng_uniform(21, i) - 1;
    for (size_t i = 0; i < outputs * (size_t)steps; i++) {
        labels[i] = (uint32_t)(rng_word(22, i) % (unsigned)io.outputs);
        targets[i] =
            m->type->task == TASK_CLASSIFY ? (float)labels[i] : rng_uniform(23, i);
    }
    put(m->weights, count);
    put(x, in * (size_t)steps);
    put(targets, outputs * (size_t)steps);
    struct batch first = {.x = x, .labels = labels, .targets = targets, .n = n},
                 b = first;
    for (int step = 0; step < steps; step++) {
        b.x = x + in * (size_t)step;
        b.labels = labels + outputs * (size_t)step;
        b.targets = targets + outputs * (size_t)step;
        loss[step] = train_step(
            m, (struct model_pass){
                   .batch = &b, .scale = 1, .seed = 1, .draw = (uint64_t)step});
        if (step == 0)
            put(model_grads(m), count);
        optimise(k, optimiser, m, state, step + 1);
    }
    put(m->weights, count);
    put(model_forward(m, &first), (size_t)(n * io.outputs));
    put(loss, (size_t)steps);
    free(x);
    free(targets);
    free(loss);
    free(labels);
    free(state[0]);
    free(state[1]);
}

int main(int argc, char **argv)
{
    struct ddp_err err = {""};
    if (argc != 11)
        return 2;
    struct io_shape io = {atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5])};
    const struct kernels *k = kernels_get(argv[9], PRECISION_FP32, &err);
    struct model *m = k ? model_create(argv[1], io, atoi(argv[6]), k, &err) : NULL;
    out = fopen(argv[10], "wb");
    if (m == NULL || out == NULL) {
        fprintf(stderr, "parity: %s\n", m ? "cannot write" : err.text);
        return 1;
    }
    model_init(m, 1);
    m->dropout = false;
    print_params(m);
    train(m, k, argv[8], io, atoi(argv[6]), atoi(argv[7]));
    model_destroy(m);
    return fclose(out) != 0;
}
