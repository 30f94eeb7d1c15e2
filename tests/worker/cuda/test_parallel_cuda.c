/* tests/worker/cuda/test_parallel_cuda.c - ddp.h with parameters in CUDA memory takes the
 * same steps as with the same parameters in host memory
 *
 * The emulated device runs work late, and keeps its memory from the host (emu.h). Copies
 * of gradients to the device are put on the program's stream, as its backward pass is: a
 * missing wait between the streams gives wrong sums.
 */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "common/scoped.h"
#include "include/ddprun/ddp.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that are no multiples of a cache line. */
static const size_t sizes[] = {1, 37, 16, 3000, 3};
enum { PARAMS = ARRAY_LEN(sizes), LARGEST = 3000, STEPS = 5 };

static const struct {
    struct ddp_parallel_options options;
    bool own;    /* memory of the loop's own */
    bool legacy; /* the program uses the legacy default stream */
} ways[] = {
    {{0}, false},
    {{.replicated = true}, true, true},
    {{.momentum = 0.9f, .first_bytes = 64, .bytes = 64}, true},
    {{.optimiser = "adamw",
      .decay = 0.01f,
      .clip_norm = 1,
      .first_bytes = 64,
      .bytes = 64},
     false,
     true},
    {{.optimiser = "adadelta", .clip_norm = 1, .replicated = true}, true},
    {{.optimiser = "adam", .ema = 0.75f}, false},
};
static const struct team teams[] = {
    {.size = 1}, {.size = 3}, {.size = 2, .layout = "ab"}};

static void cuda_ok(struct ddp_group *g, cudaError_t rc)
{
    team_assert(g, rc == cudaSuccess, "%s", cudaGetErrorString(rc));
}

/* The same parameters on the device and on the host, each with its library. */
struct twins {
    struct ddp_group *g, *other; /* a group may have one step at a time */
    struct ddp_param device[PARAMS], host[PARAMS];
    struct ddp_parallel *on_device, *on_host;
    cudaEvent_t event;                   /* of the program's own */
    float grads[STEPS][PARAMS][LARGEST]; /* copied while later steps are computed */
    float loaded[LARGEST];
    cudaStream_t stream;
};

static struct ddp_parallel *create(struct ddp_group *g, struct ddp_param *params,
                                   const struct ddp_parallel_options *o)
{
    struct ddp_err err;
    struct ddp_parallel *p = ddp_parallel_create(g, params, PARAMS, o, &err);
    team_assert(g, p, "%s", err.text);
    return p;
}

static struct twins *make(struct ddp_group *g, struct ddp_parallel_options o, bool own,
                          bool legacy, const char *host_checkpoint)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    struct ddp_err err;
    struct twins *t = xcalloc(1, sizeof *t);
    t->g = g;
    team_ok(g, ddp_group_split(g, 0, ddp_group_rank(g), &t->other, &err));
    cuda_ok(g, cudaSetDevice(ddp_group_rank(g)));
    if (!legacy)
        cuda_ok(g, cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking));
    cuda_ok(g, cudaEventCreateWithFlags(&t->event, cudaEventDisableTiming));
    for (size_t i = 0; i < PARAMS; i++) {
        t->host[i] = t->device[i] =
            (struct ddp_param){.name = names[i], .count = sizes[i], .no_decay = i == 1};
        if (own) {
            cuda_ok(g, cudaMalloc((void **)&t->device[i].weight, sizes[i] * 4));
            cuda_ok(g, cudaMalloc((void **)&t->device[i].grad, sizes[i] * 4));
        }
    }
    struct ddp_parallel_options host = o;
    host.checkpoint = host_checkpoint;
    t->on_host = create(t->other, t->host, &host);
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            t->host[i].weight[k] = ddp_group_rank(g) == 0 ? (float)(k % 5) : -1;
    for (size_t i = 0; i < PARAMS && own; i++)
        cuda_ok(g, cudaMemcpyAsync(t->device[i].weight, t->host[i].weight, sizes[i] * 4,
                                   cudaMemcpyHostToDevice, t->stream));
    o.cuda = true;
    o.cuda_stream = t->stream;
    t->on_device = create(g, t->device, &o);
    for (size_t i = 0; i < PARAMS && !own; i++)
        cuda_ok(g, cudaMemcpyAsync(t->device[i].weight, t->host[i].weight, sizes[i] * 4,
                                   cudaMemcpyHostToDevice, t->stream));
    team_ok(g, ddp_parallel_share(t->on_host, &err));
    team_ok(g, ddp_parallel_share(t->on_device, &err));
    return t;
}

static void end(struct twins *t)
{
    ddp_parallel_destroy(t->on_device);
    ddp_parallel_destroy(t->on_host);
    cuda_ok(t->g, cudaEventDestroy(t->event));
    if (t->stream)
        cuda_ok(t->g, cudaStreamDestroy(t->stream));
    ddp_group_destroy(t->other);
    free(t);
}

/* What is on the device; put on the program's stream, which waits for the step's end. */
static const float *load(struct twins *t, size_t i)
{
    cuda_ok(t->g, cudaMemcpyAsync(t->loaded, t->device[i].weight, sizes[i] * 4,
                                  cudaMemcpyDeviceToHost, t->stream));
    cuda_ok(t->g, cudaStreamSynchronize(t->stream));
    return t->loaded;
}

static void compare(struct twins *t, const char *when)
{
    for (size_t i = 0; i < PARAMS; i++) {
        const float *w = load(t, i), *want = t->host[i].weight;
        for (size_t k = 0; k < sizes[i]; k++)
            team_assert(t->g, fabsf(w[k] - want[k]) < 1e-5f * (1 + fabsf(want[k])),
                        "%s: [%zu][%zu] is %g and not %g", when, i, k, (double)w[k],
                        (double)want[k]);
    }
}

/* Rank r has r samples in even steps and r + 1 in odd ones, so rank 0 is idle at times.
 */
static size_t samples_of(int rank, int step)
{
    return (size_t)(rank + step % 2);
}

static void take_step(struct twins *t, int step)
{
    struct ddp_err err;
    int rank = ddp_group_rank(t->g);
    size_t mine = samples_of(rank, step);
    struct ddp_step host = {.loss = 2}, device = {.loss = 2};
    team_ok(t->g, ddp_parallel_begin(t->on_host, mine, &err));
    team_ok(t->g, ddp_parallel_begin(t->on_device, mine, &err));
    for (size_t j = 0; j < PARAMS && mine > 0; j++) { /* not quite in backward's order */
        size_t i = step % 2 ? PARAMS - 1 - j : (j + 2) % PARAMS;
        float *g = t->grads[step][i];
        for (size_t k = 0; k < sizes[i]; k++)
            g[k] = 0.1f * t->host[i].weight[k] + (float)((k + (size_t)step) % 7) -
                   (float)rank;
        memcpy(t->host[i].grad, g, sizes[i] * 4);
        cuda_ok(t->g, cudaMemcpyAsync(t->device[i].grad, g, sizes[i] * 4,
                                      cudaMemcpyHostToDevice, t->stream));
        ddp_parallel_ready(t->on_host, i);
        cuda_ok(t->g, cudaEventRecord(t->event, t->stream));
        team_assert(t->g, cudaEventQuery(t->event) == cudaErrorNotReady, "so soon");
        ddp_parallel_ready(t->on_device, i);
    }
    team_ok(t->g, ddp_parallel_step(t->on_host, 0.05f, &host, &err));
    team_ok(t->g, ddp_parallel_step(t->on_device, 0.05f, &device, &err));
    team_assert(t->g, host.samples == device.samples && host.loss == device.loss,
                "%zu samples, loss %g", device.samples, (double)device.loss);
    team_assert(t->g, fabsf(host.norm - device.norm) <= 1e-4f * host.norm, "%g, not %g",
                (double)device.norm, (double)host.norm);
}

static void steps_case(struct ddp_group *g, const void *arg)
{
    int way = *(const int *)arg;
    struct ddp_err err;
    struct twins *t = make(g, ways[way].options, ways[way].own, ways[way].legacy, NULL);
    compare(t, "the first weights");
    for (int step = 0; step < STEPS; step++)
        take_step(t, step);
    compare(t, "after the steps");
    team_ok(g, ddp_parallel_check(t->on_device, &err));
    for (int times = 0; times < 2 && ways[way].options.ema > 0; times++) {
        team_ok(g, ddp_parallel_swap_average(t->on_host, &err));
        team_ok(g, ddp_parallel_swap_average(t->on_device, &err));
        compare(t, times ? "exchanged back" : "the average");
    }
    take_step(t, 0);
    compare(t, "after another step");
    end(t);
}

LOOP_TEST(steps_are_those_of_host_memory, ARRAY_LEN(ways) * ARRAY_LEN(teams))
{
    int way = _i % (int)ARRAY_LEN(ways);
    assert_team(&teams[(size_t)_i / ARRAY_LEN(ways)], steps_case, &way);
}

/* A run with memory of the other kind goes on from its file. */
static void saved_case(struct ddp_group *g, const void *arg)
{
    const char *const *dirs = arg;
    struct ddp_err err;
    uint64_t step = 7;
    struct ddp_parallel_options o = {
        .optimiser = "adamw", .ema = 0.5f, .checkpoint = dirs[0]};
    struct twins *t = make(g, o, false, false, dirs[1]);
    team_ok(g, ddp_parallel_load(t->on_device, &step, &err));
    team_assert(g, step == 0, "step %d", (int)step);
    for (int i = 0; i < 2; i++)
        take_step(t, i);
    team_ok(g, ddp_parallel_save(t->on_device, 2, &err));
    team_ok(g, ddp_parallel_save(t->on_host, 2, &err));
    take_step(t, 2);
    team_ok(g, ddp_parallel_finish(t->on_device, &err));
    team_ok(g, ddp_parallel_finish(t->on_host, &err));
    end(t);
    o.checkpoint = dirs[1];
    t = make(g, o, true, false, dirs[0]);
    for (int i = 0; i < 2; i++) {
        team_ok(g, ddp_parallel_load(i ? t->on_host : t->on_device, &step, &err));
        team_assert(g, step == 2, "step %d", (int)step);
    }
    compare(t, "loaded");
    for (int i = 2; i < STEPS; i++)
        take_step(t, i);
    compare(t, "after the file");
    end(t);
}

LOOP_TEST(a_checkpoint_is_for_both_kinds_of_memory, ARRAY_LEN(teams))
{
    OWNED char *dir = temp_dir();
    OWNED char *device = xasprintf("%s/device/", dir);
    OWNED char *host = xasprintf("%s/host/", dir);
    const char *dirs[] = {device, host};
    assert_team(&teams[_i], saved_case, dirs);
}

static void give(struct twins *t, size_t i, float first)
{
    float *g = t->grads[0][i];
    g[0] = first;
    cuda_ok(t->g, cudaMemcpyAsync(t->device[i].grad, g, sizes[i] * 4,
                                  cudaMemcpyHostToDevice, t->stream));
    ddp_parallel_ready(t->on_device, i);
}

static void infinite_case(struct ddp_group *g, const void *arg)
{
    const struct ddp_parallel_options o = {.optimiser = "adam", .clip_norm = 1};
    struct ddp_err err;
    struct ddp_step s = {.loss = 1};
    struct twins *t = make(g, o, false, false, NULL);
    team_ok(g, ddp_parallel_begin(t->on_device, 1, &err));
    for (size_t i = 0; i < PARAMS; i++)
        give(t, i, i == 1 && ddp_group_rank(g) == 0 ? INFINITY : 1);
    team_ok(g, ddp_parallel_step(t->on_device, 1, &s, &err));
    team_assert(g, !isfinite(s.norm), "%g", (double)s.norm);
    compare(t, "no step");
    for (int i = 0; i < 2; i++) /* the next one is the first */
        take_step(t, i);
    compare(t, "after it");
    end(t);
}

LOOP_TEST(a_gradient_that_is_not_finite_takes_no_step, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], infinite_case, NULL);
}

/* The ranks whose sums will never end give up at once. */
static void missing_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err;
    struct ddp_step s = {.loss = 1};
    struct twins *t = make(g, (struct ddp_parallel_options){0}, false, false, NULL);
    bool odd = ddp_group_rank(g) == 1;
    team_ok(g, ddp_parallel_begin(t->on_device, 1, &err));
    for (size_t i = 0; i < PARAMS; i++)
        if (i != 2 || !odd)
            give(t, i, 1);
    team_assert(g, ddp_parallel_step(t->on_device, 1, &s, &err) < 0, "it has ended");
    team_assert(g,
                strstr(err.text, odd ? "the gradient of 'c' is missing"
                                     : "a gradient is missing on another rank"),
                "%s", err.text);
    end(t);
}

TEST(a_missing_gradient_is_an_error_on_all)
{
    assert_team(&(struct team){.size = 2}, missing_case, NULL);
}

/* Of a GPU that fails on one rank the others do not wait for what will never end. */
static void refuses_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err;
    struct twins *t =
        make(g, (struct ddp_parallel_options){.bytes = 64}, false, false, NULL);
    bool odd = ddp_group_rank(g) == 1;
    if (odd)
        setenv("EMU_REFUSED", "scale:1", 1);
    team_ok(g, ddp_parallel_begin(t->on_device, 1, &err));
    for (size_t i = PARAMS; i-- > 0;)
        give(t, i, 1);
    team_assert(g, ddp_parallel_step(t->on_device, 1, NULL, &err) < 0, "it has ended");
    team_assert(g, strstr(err.text, odd ? "kernel 'scale'" : "its GPU has failed"), "%s",
                err.text);
    struct team_watch since = team_watch();
    if (odd) /* it goes on as long as the others have not given up */
        team_ok(g, ddp_barrier(t->other, &err));
    ddp_parallel_destroy(t->on_device);
    t->on_device = NULL;
    if (!odd)
        team_ok(g, ddp_barrier(t->other, &err));
    team_assert(g, team_is_soon(since), "late");
    end(t);
}

TEST(all_give_up_when_a_gpu_fails)
{
    assert_team(&(struct team){.size = 3}, refuses_case, NULL);
}

/* Rank 1 dies in a step, or after its last call, when its GPU has not taken part yet. */
static void died_case(struct ddp_group *g, const void *arg)
{
    const bool *after = arg;
    struct ddp_err err = {""};
    struct twins *t =
        make(g, (struct ddp_parallel_options){.bytes = 64}, false, false, NULL);
    team_ok(g, ddp_parallel_begin(t->on_device, 1, &err));
    if (ddp_group_rank(g) == 1 && !*after)
        raise(SIGKILL);
    for (size_t i = PARAMS; i-- > 0;)
        give(t, i, 1);
    struct team_watch since = team_watch();
    int rc = ddp_parallel_step(t->on_device, 1, NULL, &err);
    if (*after && rc == 0) {
        if (ddp_group_rank(g) == 1)
            raise(SIGKILL);
        rc = ddp_parallel_check(t->on_device, &err);
    }
    team_assert(g, rc < 0 && strstr(err.text, "rank 1"), "%s", err.text);
    end(t);
    team_assert(g, team_is_soon(since), "late: %s", err.text);
}

LOOP_TEST(a_rank_that_dies_is_named, 2)
{
    const bool after = _i;
    assert_team(&(struct team){.size = 3, .expect_dead = 2}, died_case, &after);
}

static void refused_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    float here[4] = {0}, *there;
    struct ddp_param w = {.name = "w", .count = 4};
    struct ddp_parallel_options o = {.cuda = true};
    int rank = ddp_group_rank(g);
    cuda_ok(g, cudaSetDevice(rank));
    cuda_ok(g, cudaMalloc((void **)&there, sizeof here));
    w.grad = rank == 1 ? here : there;
    team_assert(g,
                !ddp_parallel_create(g, &w, 1, &o, &err) &&
                    strstr(err.text,
                           "rank 1: the gradients of parameter 0 are not in the "
                           "memory of GPU 1"),
                "%s", err.text);
    o.buckets_by_time = true;
    team_assert(g,
                !ddp_parallel_create(g, &w, 1, &o, &err) &&
                    strstr(err.text, "buckets_by_time is for host memory"),
                "%s", err.text);
    o = (struct ddp_parallel_options){.cuda = rank == 1};
    w.grad = w.weight = NULL;
    team_assert(g,
                !ddp_parallel_create(g, &w, 1, &o, &err) &&
                    strstr(err.text, "rank 1 has another cuda"),
                "%s", err.text);
    unsetenv("DDP_ENGINE");
    o.cuda = true;
    team_assert(g,
                !ddp_parallel_create(g, &w, 1, &o, &err) &&
                    strstr(err.text, "options.cuda: no NVIDIA driver"),
                "%s", err.text);
}

TEST(what_cannot_be_used_is_named)
{
    assert_team(&(struct team){.size = 2}, refused_case, NULL);
}
