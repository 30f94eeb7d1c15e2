/* bench/data_parallel.c - one process for all replicas, or one for each: what a step
 * costs
 *
 *     bench-data_parallel MODEL BATCH SECONDS REPLICAS
 *     ddprun -np REPLICAS bench-data_parallel MODEL BATCH SECONDS
 *
 * The first is what torch.nn.DataParallel does, with threads for devices: each step
 * copies the weights to every replica, scatters the batch, goes forward on all replicas,
 * computes the loss in one place (to which outputs need no copy here), goes back on all,
 * adds the gradients up in one place, and takes the optimiser's step there. The second is
 * ddp-train's way, with the settings that it has for ranks of one host: a process each,
 * which reads the others' gradients where they lie, takes the step of its part, and gives
 * the others the weights. BATCH is that of a replica. Prints images/s of all replicas
 * together, a second a line. Random images of 1x28x28, SGD with momentum.
 * bench/data_parallel.py runs both in turn.
 */
#include "common/duration.h"
#include "common/mem.h"
#include "tests/worker/nn/train_step.h"
#include "worker/ddp/reducer.h"
#include "worker/kernels/rng.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 28 * 28, OUTPUTS = 10, MOST = 64 };

static const struct io_shape images = {1, 28, 28, OUTPUTS};

struct samples {
    float *x;
    uint32_t *labels;
};

static struct samples random_samples(int n, uint64_t seed)
{
    size_t count = (size_t)n;
    struct samples s = {xcalloc(count * PIXELS, sizeof(float)),
                        xcalloc(count, sizeof(uint32_t))};
    for (size_t i = 0; i < count * PIXELS; i++)
        s.x[i] = rng_uniform(seed, i);
    for (size_t i = 0; i < count; i++)
        s.labels[i] = (uint32_t)(rng_word(seed + 1, i) % OUTPUTS);
    return s;
}

static struct model *a_model(const char *name, int batch, const struct kernels *k)
{
    struct ddp_err err;
    struct model *m = model_create(name, images, batch, k, &err);
    if (!m) {
        fprintf(stderr, "data_parallel: %s\n", err.text);
        exit(1);
    }
    model_init(m, 1);
    return m;
}

/* ---- one process ---- */

struct shared {
    const struct kernels *k;
    int replicas, batch;
    struct model *models[MOST];
    struct model_pass passes[MOST];
    struct batch batches[MOST];
    struct samples all, own[MOST];
    struct optim optim;
    pthread_barrier_t turn;
    int next;
    uint64_t step;
};

static void scatter(struct shared *s, int r)
{
    size_t n = (size_t)s->batch, from = n * (size_t)r;
    memcpy(s->own[r].x, s->all.x + from * PIXELS, n * PIXELS * sizeof(float));
    memcpy(s->own[r].labels, s->all.labels + from, n * sizeof *s->all.labels);
    s->batches[r] =
        (struct batch){.x = s->own[r].x, .labels = s->own[r].labels, .n = s->batch};
    s->passes[r] = (struct model_pass){.batch = &s->batches[r],
                                       .scale = 1 / (float)s->replicas,
                                       .seed = 1 + (uint64_t)r,
                                       .draw = s->step};
}

static void go_forward(struct shared *s, int r)
{
    model_pass_forward(s->models[r], &s->passes[r], 0, s->models[r]->nlayers);
}

static void go_back(struct shared *s, int r)
{
    model_pass_back(s->models[r], &s->passes[r], 0, s->models[r]->nlayers);
}

static void *replica(void *arg)
{
    struct shared *s = arg;
    int r = __atomic_add_fetch(&s->next, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        pthread_barrier_wait(&s->turn);
        go_forward(s, r);
        pthread_barrier_wait(&s->turn);
        pthread_barrier_wait(&s->turn);
        go_back(s, r);
        pthread_barrier_wait(&s->turn);
    }
    return NULL;
}

static void shared_step(struct shared *s)
{
    size_t n = s->models[0]->count;
    for (int r = 0; r < s->replicas; r++) {
        scatter(s, r);
        if (r > 0)
            memcpy(s->models[r]->weights, s->models[0]->weights, n * sizeof(float));
    }
    pthread_barrier_wait(&s->turn);
    go_forward(s, 0);
    pthread_barrier_wait(&s->turn);
    for (int r = 0; r < s->replicas; r++) {
        int correct;
        model_pass_loss(s->models[r], &s->passes[r], &correct);
    }
    pthread_barrier_wait(&s->turn);
    go_back(s, 0);
    pthread_barrier_wait(&s->turn);
    for (int r = 1; r < s->replicas; r++)
        s->k->add(model_grads(s->models[0]), model_grads(s->models[r]), (int64_t)n);
    optim_step(&s->optim, s->models[0]->weights, model_grads(s->models[0]), 0.01f);
    s->step++;
}

/* Images/s of all replicas. */
static void tell_a_second(struct shared *s)
{
    int64_t began = now_ns();
    long steps = 0;
    for (; steps < 20 || now_ns() - began < 900000000; steps++)
        shared_step(s);
    double took = (double)(now_ns() - began) / 1e9;
    printf("%.0f\n", (double)(steps * s->batch * s->replicas) / took);
    fflush(stdout);
}

static void one_process(const char *model, int batch, int seconds, int replicas,
                        const struct kernels *k)
{
    static struct shared s;
    s = (struct shared){.k = k, .replicas = replicas, .batch = batch};
    s.all = random_samples(batch * replicas, 1);
    pthread_barrier_init(&s.turn, NULL, (unsigned)replicas);
    for (int r = 0; r < replicas; r++) {
        pthread_t thread;
        s.models[r] = a_model(model, batch, k);
        s.own[r] = random_samples(batch, 1);
        if (r > 0)
            pthread_create(&thread, NULL, replica, &s); /* it ends with the process */
    }
    optim_init(&s.optim, optim_find("sgd"), (struct optim_settings){.momentum = 0.9f}, k,
               s.models[0]->count);
    shared_step(&s); /* cold */
    for (int i = 0; i < seconds; i++)
        tell_a_second(&s);
}

/* ---- a process each ---- */

struct rank {
    struct ddp_group *group;
    struct model *model;
    struct reducer *reducer;
    struct optim optim;
    struct samples samples;
    int batch;
    uint64_t step;
};

static void must(int rc, const struct ddp_err *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "data_parallel: %s\n", err->text);
    exit(1);
}

static void rank_step(struct rank *r)
{
    struct ddp_err err;
    struct step_sums sums = {0};
    int size = ddp_group_size(r->group);
    struct batch b = {.x = r->samples.x, .labels = r->samples.labels, .n = r->batch};
    must(reducer_begin(r->reducer, false, &err), &err);
    train_step(r->model, (struct model_pass){.batch = &b,
                                             .scale = 1 / (float)size,
                                             .seed = 1,
                                             .draw = r->step++,
                                             .ready = reducer_ready,
                                             .arg = r->reducer});
    must(reducer_finish(r->reducer, &sums, &err), &err);
    const struct step_rule how = {.lr = 0.01f, .by = 1};
    double norm;
    must(reducer_step(r->reducer, &r->optim, r->model->weights, &how, &norm, &err), &err);
}

/* As the engine of ddp-train does it; worker/engine_cpu.c. */
static void join(struct rank *r, const struct kernels *k)
{
    struct ddp_err err;
    size_t n = r->model->count;
    struct ddp_group_options options = {.rank = -1,
                                        .arena_bytes = 4 * n * sizeof(float) + (1 << 20)};
    struct reducer_settings settings = {1 << 20, 25 << 20, true,    true,
                                        false,   true,     r->model};
    r->group = ddp_group_init(&options, &err);
    must(r->group ? 0 : -1, &err);
    r->reducer = reducer_create(r->group, r->model, settings, &err);
    must(r->reducer ? 0 : -1, &err);
    optim_init(&r->optim, optim_find("sgd"), (struct optim_settings){.momentum = 0.9f}, k,
               n);
    reducer_keep_states(r->reducer, &r->optim);
}

/* By steps, not by each rank's own clock: all take as many. */
static long steps_of_a_second(struct rank *r)
{
    enum { COLD = 5, WARM = 20 };
    struct ddp_err err;
    for (int i = 0; i < COLD; i++)
        rank_step(r);
    int64_t began = now_ns();
    for (int i = 0; i < WARM; i++)
        rank_step(r);
    int64_t took = now_ns() - began;
    must(ddp_all_reduce(r->group, &took, 1, DDP_I64, DDP_MAX, &err), &err);
    return 1 + INT64_C(900000000) * WARM / (took + 1);
}

static void a_process_each(const char *model, int batch, int seconds,
                           const struct kernels *k)
{
    struct ddp_err err;
    struct rank r = {.model = a_model(model, batch, k),
                     .samples = random_samples(batch, 1),
                     .batch = batch};
    join(&r, k);
    long steps = steps_of_a_second(&r), size = ddp_group_size(r.group);
    for (int s = 0; s < seconds; s++) {
        must(ddp_barrier(r.group, &err), &err);
        int64_t began = now_ns();
        for (long i = 0; i < steps; i++)
            rank_step(&r);
        must(ddp_barrier(r.group, &err), &err);
        if (ddp_group_rank(r.group) == 0)
            printf("%.0f\n",
                   (double)(steps * size * batch) * 1e9 / (double)(now_ns() - began));
    }
    reducer_destroy(r.reducer);
    ddp_group_destroy(r.group);
}

int main(int argc, char **argv)
{
    struct ddp_err err = {""};
    int replicas = argc > 4 ? atoi(argv[4]) : 0;
    if (argc < 4 || replicas > MOST || (replicas < 1 && !getenv("WORLD_SIZE"))) {
        fprintf(stderr, "usage: data_parallel MODEL BATCH SECONDS REPLICAS\n"
                        "       ddprun -np REPLICAS data_parallel MODEL BATCH SECONDS\n");
        return 2;
    }
    const struct kernels *k = kernels_get(NULL, PRECISION_FP32, &err);
    if (replicas > 0)
        one_process(argv[1], atoi(argv[2]), atoi(argv[3]), replicas, k);
    else
        a_process_each(argv[1], atoi(argv[2]), atoi(argv[3]), k);
    return 0;
}
