/* tests/worker/test_parallel.c - include/ddprun/ddp.h: every rank takes the step
 * that one rank with all samples would take; mistakes: test_parallel_mistakes.c */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "include/ddprun/ddp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that are no multiples of a cache line. */
static const size_t sizes[] = {1, 37, 16, 5000, 3};
enum { PARAMS = ARRAY_LEN(sizes), LARGEST = 5000, STEPS = 12, CLIP = 100 };

static const struct {
    struct ddp_parallel_options options;
    bool own; /* memory of the loop's own */
} ways[] = {
    {{0}, false},
    {{0}, true},
    {{.replicated = true}, false},
    {{.replicated = true, .buckets_by_time = true, .first_bytes = 64, .bytes = 64}, true},
    {{.optimiser = "sgd", .momentum = 0.9f, .first_bytes = 64, .bytes = 64}, false},
    {{.optimiser = "adamw", .decay = 0.01f}, true},
    {{.decay = 0.5f}, false},
    {{.decay = 0.5f, .replicated = true}, true},
    {{.clip_norm = CLIP}, false},
    {{.clip_norm = CLIP, .replicated = true}, true},
    {{.ema = 0.75f}, false},
    {{.ema = 0.5f, .replicated = true}, true},
};
static const struct team teams[] = {{.size = 1},
                                    {.size = 3},
                                    {.size = 2, .backend = "tcp"},
                                    {.size = 4, .layout = "aabb"}};

/* Rank r has r samples in even steps and r + 1 in odd ones, so rank 0 is idle at times.
 */
static size_t samples_of(int rank, int step)
{
    return (size_t)(rank + step % 2);
}

/* The gradient of the mean over a rank's samples, at weight w. */
static float gradient(float w, size_t k, int rank, int step)
{
    return 0.1f * w + (float)((k + (size_t)step) % 7) - (float)rank;
}

struct loop {
    struct ddp_param params[PARAMS];
    float weights[PARAMS][LARGEST], grads[PARAMS][LARGEST];
};

static struct ddp_parallel *make(struct ddp_group *g, struct loop *l, int way)
{
    struct ddp_err err;
    for (size_t i = 0; i < PARAMS; i++)
        l->params[i] = (struct ddp_param){.name = i ? "some" : "first",
                                          .weight = ways[way].own ? l->weights[i] : NULL,
                                          .grad = ways[way].own ? l->grads[i] : NULL,
                                          .count = sizes[i],
                                          .no_decay = i % 2};
    struct ddp_parallel *p =
        ddp_parallel_create(g, l->params, PARAMS, &ways[way].options, &err);
    team_assert(g, p, "%s", err.text);
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            l->params[i].weight[k] = ddp_group_rank(g) == 0 ? (float)(k % 5) : -1;
    team_assert(g, ddp_parallel_share(p, &err) == 0, "%s", err.text);
    return p;
}

/* Of the mean over all ranks' samples, in double; 0 if there are none. */
static double mean_gradient(double w, size_t k, int size, int step)
{
    double all = 0, sum = 0;
    for (int r = 0; r < size; r++) {
        all += (double)samples_of(r, step);
        sum += (double)samples_of(r, step) * (double)gradient((float)w, k, r, step);
    }
    return all > 0 ? sum / all : 0;
}

/* Plain gradient descent: what the weights are to be. Returns the gradient's norm. */
static double expect(double *w, int size, int step, double lr,
                     const struct ddp_parallel_options *o)
{
    double norm = 0, clip_norm = (double)o->clip_norm;
    double decay = size > 1 || samples_of(0, step) > 0 ? lr * (double)o->decay : 0;
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            norm += pow(mean_gradient(w[i * LARGEST + k], k, size, step), 2);
    norm = sqrt(norm);
    if (clip_norm > 0 && norm > clip_norm)
        lr *= clip_norm / norm;
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < sizes[i]; k++) {
            double *at = &w[i * LARGEST + k];
            *at -= lr * mean_gradient(*at, k, size, step) + (i % 2 ? 0 : decay * *at);
        }
    return norm;
}

/* The average of the weights after so many steps. */
static void expect_average(double *e, const double *w, int steps, double keep)
{
    for (size_t i = 0; i < PARAMS * LARGEST; i++)
        e[i] = steps == 1 ? w[i] : keep * e[i] + (1 - keep) * w[i];
}

static void check_weights(struct ddp_group *g, const struct loop *l, const double *want,
                          const char *what, int step)
{
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            team_assert(
                g, fabs((double)l->params[i].weight[k] - want[i * LARGEST + k]) < 1e-4,
                "step %d: [%zu][%zu] of the %s is %g and not %g", step, i, k, what,
                (double)l->params[i].weight[k], want[i * LARGEST + k]);
}

/* The norm that the library tells. */
static double step_of(struct ddp_group *g, struct ddp_parallel *p, struct loop *l,
                      int step)
{
    struct ddp_err err;
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    size_t mine = samples_of(rank, step), all = 0;
    for (int r = 0; r < size; r++)
        all += samples_of(r, step);
    team_assert(g, ddp_parallel_begin(p, mine, &err) == 0, "%s", err.text);
    for (size_t j = 0; j < PARAMS && mine > 0; j++) { /* not quite in backward's order */
        size_t i = step % 2 ? PARAMS - 1 - j : (j + 2) % PARAMS;
        for (size_t k = 0; k < sizes[i]; k++)
            l->params[i].grad[k] = gradient(l->params[i].weight[k], k, rank, step);
        ddp_parallel_ready(p, i);
    }
    struct ddp_step s = {.loss = 2};
    team_assert(g, ddp_parallel_step(p, 0.05f, &s, &err) == 0, "%s", err.text);
    team_assert(g, s.samples == all && s.loss == (all ? 2 : 0), "%zu of %zu, %g",
                s.samples, all, (double)s.loss);
    return (double)s.norm;
}

static void steps_case(struct ddp_group *g, const void *arg)
{
    int way = *(const int *)arg;
    struct ddp_err err;
    struct loop *l = xcalloc(1, sizeof *l);
    double *want = xcalloc(2 * PARAMS * LARGEST, sizeof *want);
    double *average = want + PARAMS * LARGEST, keep = (double)ways[way].options.ema;
    struct ddp_parallel *p = make(g, l, way);
    int steps = 0, size = ddp_group_size(g);
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            want[i * LARGEST + k] = (double)(k % 5);
    for (int step = 0; step < STEPS; step++) {
        double clip = (double)ways[way].options.clip_norm;
        double told = step_of(g, p, l, step);
        double norm = expect(want, size, step, 0.05, &ways[way].options);
        team_assert(g, ddp_parallel_check(p, &err) == 0, "%s", err.text);
        team_assert(g, clip > 0 ? fabs(told - norm) < 1e-3 : told == 0, "%g, not %g",
                    told, norm);
        if (!ways[way].options.optimiser)
            check_weights(g, l, want, "weights", step);
        if (size > 1 || samples_of(0, step) > 0)
            expect_average(average, want, ++steps, keep);
        for (int times = 0; times < 2 && keep > 0 && steps > 0; times++) {
            team_assert(g, ddp_parallel_swap_average(p, &err) == 0, "%s", err.text);
            check_weights(g, l, times ? want : average, times ? "weights" : "average",
                          step);
        }
    }
    ddp_parallel_destroy(p);
    free(want);
    free(l);
}

LOOP_TEST(a_step_is_that_of_all_samples, ARRAY_LEN(ways) * ARRAY_LEN(teams))
{
    int way = _i % (int)ARRAY_LEN(ways);
    assert_team(&teams[(size_t)_i / ARRAY_LEN(ways)], steps_case, &way);
}

/* The weights stay as they are. */
static void infinite_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err;
    struct ddp_step s = {.loss = 1};
    struct ddp_param w = {.name = "w", .count = 4};
    const struct ddp_parallel_options clipped = {.clip_norm = 1};
    struct ddp_parallel *p = ddp_parallel_create(g, &w, 1, &clipped, &err);
    team_assert(g, p && ddp_parallel_begin(p, 1, &err) == 0, "%s", err.text);
    w.grad[0] = ddp_group_rank(g) == 0 ? INFINITY : 1;
    ddp_parallel_ready(p, 0);
    team_assert(g, ddp_parallel_step(p, 1, &s, &err) == 0, "%s", err.text);
    team_assert(g, !isfinite(s.norm) && w.weight[0] == 0 && w.weight[1] == 0, "%g, %g",
                (double)s.norm, (double)w.weight[1]);
    ddp_parallel_destroy(p);
}

LOOP_TEST(a_gradient_that_is_not_finite_takes_no_step, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], infinite_case, NULL);
}

/* Time and memory do not grow with the square of the number of parameters or buckets. */
static void many_case(struct ddp_group *g, const void *arg)
{
    enum { MANY = 100000, NAME = 8, WATCHED = 6 };
    struct ddp_err err = {""};
    struct ddp_param *params = xcalloc(MANY, sizeof *params);
    char *names = xcalloc(MANY, NAME);
    float *weights = xcalloc(MANY, sizeof *weights);
    for (size_t i = 0; i < MANY; i++) {
        snprintf(names + i * NAME, NAME, "p%zu", i);
        params[i] = (struct ddp_param){names + i * NAME, weights + i, NULL, 1};
    }
    const struct ddp_parallel_options options = {
        .replicated = true, .buckets_by_time = true, .checkpoint = arg};
    struct ddp_parallel *p = ddp_parallel_create(g, params, MANY, &options, &err);
    team_assert(g, p, "%s", err.text);
    for (int step = 0; step < WATCHED; step++) {
        struct ddp_step s = {.loss = 1};
        team_assert(g, ddp_parallel_begin(p, 1, &err) == 0, "%s", err.text);
        for (size_t i = MANY; i-- > 0;) {
            params[i].grad[0] = 1;
            ddp_parallel_ready(p, i);
        }
        team_assert(g, ddp_parallel_step(p, 1, &s, &err) == 0, "%s", err.text);
    }
    for (size_t i = 0; i < MANY; i++)
        team_assert(g, weights[i] == -WATCHED, "%zu: %g", i, (double)weights[i]);
    ddp_parallel_destroy(p);
    free(weights);
    free(names);
    free(params);
}

TEST(a_hundred_thousand_parameters_are_trained)
{
    OWNED char *dir = temp_dir();
    assert_team(&(struct team){.size = 2}, many_case, dir);
}

/* A step with a gradient of 1: to -0.5, -1 and -1.5. */
static void take_step(struct ddp_group *g, struct ddp_parallel *p, struct ddp_param *w)
{
    struct ddp_err err;
    struct ddp_step s = {.loss = 1};
    team_assert(g, ddp_parallel_begin(p, 1, &err) == 0, "%s", err.text);
    for (size_t k = 0; k < w->count; k++)
        w->grad[k] = 1;
    ddp_parallel_ready(p, 0);
    team_assert(g, ddp_parallel_step(p, 0.5f, &s, &err) == 0, "%s", err.text);
}

/* Rank 1 would update its part of the weights by another rate: rank 0's counts. */
static void rate_case(struct ddp_group *g, const void *options)
{
    struct ddp_err err = {""};
    struct ddp_param w = {.name = "w", .count = 40};
    struct ddp_parallel *p = ddp_parallel_create(g, &w, 1, options, &err);
    struct ddp_step s = {.loss = 1};
    bool odd = ddp_group_rank(g) == 1;
    team_assert(g, p && ddp_parallel_begin(p, 1, &err) == 0, "%s", err.text);
    for (size_t k = 0; k < w.count; k++)
        w.grad[k] = 1;
    ddp_parallel_ready(p, 0);
    team_ok(g, ddp_parallel_step(p, odd ? 0.25f : 0.5f, &s, &err));
    for (size_t k = 0; k < w.count; k++)
        team_assert(g, w.weight[k] == -0.5f, "%g", (double)w.weight[k]);
    team_ok(g, ddp_parallel_begin(p, 1, &err));
    ddp_parallel_ready(p, 0);
    team_assert(g,
                ddp_parallel_step(p, odd ? 0.5f : NAN, &s, &err) < 0 &&
                    strstr(err.text, "the learning rate is nan"),
                "%s", err.text);
    ddp_parallel_destroy(p);
}

/* Of the size that ddp.h gives. */
static void arena_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group_options o = {.rank = ddp_group_rank(g),
                                  .size = ddp_group_size(g),
                                  .timeout_ms = 60000,
                                  .arena_bytes = 128 * PARAMS + 4096};
    for (size_t i = 0; i < PARAMS; i++)
        o.arena_bytes += 8 * sizes[i];
    struct ddp_group *small = ddp_group_init(&o, &err);
    team_assert(g, small, "%s", err.text);
    OWNED struct loop *l = xcalloc(1, sizeof *l);
    ddp_parallel_destroy(make(small, l, 0));
    team_assert(g, !ddp_arena_alloc(small, 8192, &err), "the arena is larger");
    ddp_group_destroy(small);
}

TEST(the_arena_has_the_size_of_the_header)
{
    assert_team(&(struct team){.size = 2}, arena_case, NULL);
}

LOOP_TEST(the_rate_is_that_of_rank_0, 2)
{
    const struct ddp_parallel_options options = {.replicated = _i};
    assert_team(&(struct team){.size = 2}, rate_case, &options);
}

/* It is -0.5, then -0.625 and, from the file on, -0.84375. */
static void saved_average_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    const struct ddp_parallel_options options = {.ema = 0.75f, .checkpoint = arg};
    for (int run = 0; run < 2; run++) {
        struct ddp_param w = {.name = "w", .count = 70};
        struct ddp_parallel *p = ddp_parallel_create(g, &w, 1, &options, &err);
        uint64_t step;
        team_assert(g, p && ddp_parallel_load(p, &step, &err) == 0, "%s", err.text);
        team_assert(g, step == (run ? 2 : 0), "step %d", (int)step);
        take_step(g, p, &w);
        if (run == 0)
            take_step(g, p, &w);
        team_assert(g, ddp_parallel_swap_average(p, &err) == 0, "%s", err.text);
        team_assert(g, w.weight[69] == (run ? -0.84375f : -0.625f), "%g",
                    (double)w.weight[69]);
        team_assert(g,
                    ddp_parallel_save(p, 2, &err) < 0 &&
                        ddp_parallel_begin(p, 1, &err) < 0 &&
                        strstr(err.text, "the weights are averages: first put them back"),
                    "%s", err.text);
        team_assert(g, ddp_parallel_swap_average(p, &err) == 0, "%s", err.text);
        team_assert(
            g, ddp_parallel_save(p, 2, &err) == 0 && ddp_parallel_finish(p, &err) == 0,
            "%s", err.text);
        ddp_parallel_destroy(p);
    }
}

LOOP_TEST(an_average_is_in_checkpoints, ARRAY_LEN(teams))
{
    OWNED char *dir = temp_dir();
    char *path = xasprintf("%s/c", dir);
    assert_team(&teams[_i], saved_average_case, path);
    free(path);
}
