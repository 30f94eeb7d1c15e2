#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/nn/train_step.h"
#include "worker/ddp/bucket.h"
#include "worker/ddp/reducer.h"
#include "worker/kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = (1 << 20) / 4, MAX = 8 }; /* floats */

static const struct {
    const char *model;
    int images;
    size_t first, cap;
    const char *ends; /* the parameter each bucket begins with, in the plan's order */
} plans[] = {
    {"cnn", 28, MIB, 25 * MIB, "fc1.weight conv1.weight"},
    {"cnn", 8, MIB, 25 * MIB, "fc1.weight conv1.weight"},
    {"cnn", 28, 1, 1, "fc2.weight fc1.weight conv2.weight conv1.weight"},
    {"cnn", 28, 0, 0, "fc2.weight fc1.weight conv2.weight conv1.weight"},
    {"cnn", 28, 1, SIZE_MAX, "conv1.weight"},
    {"mlp", 28, MIB, 25 * MIB, "fc2.weight fc1.weight"},
    {"mlp", 8, 100 * MIB, 100 * MIB, "fc1.weight"},
    {"linreg", 1, MIB, 25 * MIB, "linear.weight"},
};

static struct model *make(const char *name, int images)
{
    struct ddp_err err;
    int outputs = strcmp(name, "linreg") == 0 ? 1 : 10;
    struct model *m = model_create(name, (struct io_shape){1, images, images, outputs}, 4,
                                   kernels_get(NULL, PRECISION_FP32, &err), &err);
    ck_assert_msg(m != NULL, "%s", err.text);
    return m;
}

LOOP_TEST(buckets_cover_the_block_backwards, ARRAY_LEN(plans))
{
    struct model *m = make(plans[_i].model, plans[_i].images);
    size_t end = m->count;
    const struct param *params = m->params;
    size_t n = m->nparams;
    struct bucket buckets[MAX];
    size_t nbuckets = bucket_plan(params, n, plans[_i].first, plans[_i].cap, buckets);
    char ends[256] = "";
    for (size_t b = 0; b < nbuckets; b++) {
        ck_assert_uint_eq(buckets[b].offset + buckets[b].count, end);
        end = buckets[b].offset;
        for (size_t i = 0; i < n; i++) {
            if (params[i].offset == buckets[b].offset) {
                strcat(ends, *ends ? " " : "");
                strcat(ends, params[i].name);
            }
        }
    }
    ck_assert_uint_eq(end, 0);
    ck_assert_str_eq(ends, plans[_i].ends);
    model_destroy(m);
}

/* When the plan is over: buckets one after the other, each once its last piece is ready.
 */
static double end_of(const struct bucket *plan, size_t nplan, const struct bucket *pieces,
                     const double *ready, size_t n, double latency, double per_float)
{
    double now = 0;
    size_t at = 0;
    for (size_t b = 0; b < nplan; b++) {
        size_t floats = 0;
        while (floats < plan[b].count)
            floats += pieces[at++].count;
        ck_assert_uint_eq(floats, plan[b].count);
        ck_assert_uint_eq(plan[b].offset, pieces[at - 1].offset);
        now = fmax(now, ready[at - 1]) + latency + (double)floats * per_float;
    }
    ck_assert_uint_eq(at, n);
    return now;
}

/* Against all 2^(n-1) ways to join the pieces. */
LOOP_TEST(no_other_plan_is_over_sooner, 40)
{
    enum { N = 9 };
    struct bucket pieces[N], plan[N];
    double ready[N], now = 0;
    size_t n = 1 + rng_word(1, (uint64_t)_i) % N, offset = 0;
    double latency = 1e-5 * (double)rng_uniform(2, (uint64_t)_i);
    double per_float = 1e-7 * (double)rng_uniform(3, (uint64_t)_i);
    for (size_t i = n; i-- > 0; offset += pieces[i].count)
        pieces[i] = (struct bucket){offset, 1 + rng_word(4 + (uint64_t)_i, i) % 2000};
    for (size_t i = 0; i < n; i++)
        ready[i] = now += 1e-4 * (double)rng_uniform(50 + (uint64_t)_i, i);
    size_t nplan = bucket_plan_timed(pieces, ready, n, latency, per_float, plan);
    double got = end_of(plan, nplan, pieces, ready, n, latency, per_float);
    double best = INFINITY;
    for (unsigned cuts = 0; cuts < 1u << (n - 1); cuts++) {
        struct bucket other[N];
        size_t k = 0, count = 0;
        for (size_t i = 0; i < n; i++) {
            count += pieces[i].count;
            if (i + 1 == n || (cuts >> i & 1)) {
                other[k++] = (struct bucket){pieces[i].offset, count};
                count = 0;
            }
        }
        best = fmin(best, end_of(other, k, pieces, ready, n, latency, per_float));
    }
    ck_assert_double_le(got, best * 1.0100001);
}

static const struct {
    double ready[3], latency, per_float;
    size_t buckets;
} timed[] = {
    {{1, 2, 3}, 0.1, 0, 1},      /* nothing but latency: at the end, all at once */
    {{1, 1, 1}, 0.1, 0.1, 1},    /* all is ready at once */
    {{1, 2, 30}, 0.01, 0.1, 2},  /* a long way back at the end: the rest goes meanwhile */
    {{1, 11, 21}, 0.01, 1.0, 3}, /* talk takes as long as the way back: each at once */
};

LOOP_TEST(buckets_follow_the_times, ARRAY_LEN(timed))
{
    const struct bucket pieces[] = {{20, 10}, {10, 10}, {0, 10}};
    struct bucket plan[3];
    ck_assert_uint_eq(bucket_plan_timed(pieces, timed[_i].ready, 3, timed[_i].latency,
                                        timed[_i].per_float, plan),
                      timed[_i].buckets);
    ck_assert_uint_eq(plan[timed[_i].buckets - 1].offset, 0);
}

/* In a time that is linear in their number. */
TEST(many_pieces_are_planned_and_none_is_lost)
{
    enum { MANY = 300000 };
    static struct bucket pieces[MANY], plan[MANY];
    static double ready[MANY];
    size_t end = 0;
    for (size_t i = MANY; i-- > 0; end += pieces[i].count)
        pieces[i] = (struct bucket){end, i % 7 == 0 ? 5000 : i % 3};
    for (size_t i = 0; i < MANY; i++)
        ready[i] = (double)i;
    size_t n = bucket_plan_timed(pieces, ready, MANY, 1e-6, 1e-3, plan);
    ck_assert_uint_ge(n, 5); /* the last ones are small */
    for (size_t i = 0; i < n; end = plan[i++].offset)
        ck_assert_uint_eq(plan[i].offset + plan[i].count, end);
    ck_assert_uint_eq(end, 0);
}

/* Alone, a rank's step is what backward made: nothing is sent and nothing changes. */
TEST(a_group_of_one_leaves_gradients_alone)
{
    struct ddp_err err;
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    struct ddp_group_options options = {.rank = 0, .size = 1};
    struct ddp_group *g = ddp_group_init(&options, &err);
    ck_assert_msg(g != NULL, "%s", err.text);
    struct model *m = make("mlp", 8);
    struct reducer_settings settings = {1 << 20, 25 << 20, true};
    struct reducer *r = reducer_create(g, m, settings, &err);
    ck_assert_msg(r != NULL, "%s", err.text);
    float *grads = reducer_grads(r);
    ck_assert_uint_eq((uintptr_t)grads % 64, 0);
    size_t count = m->count;
    for (size_t i = 0; i < count; i++)
        grads[i] = (float)i;
    ck_ok(reducer_begin(r, false, &err), err);
    reducer_ready(0, count, r);
    struct step_sums sums = {.loss = 2.5f, .correct = 3};
    ck_ok(reducer_finish(r, &sums, &err), err);
    ck_assert(sums.loss == 2.5f && sums.correct == 3 && sums.stop == 0);
    for (size_t i = 0; i < count; i++)
        ck_assert(grads[i] == (float)i);
    ck_ok(reducer_begin(r, true, &err), err);
    for (size_t i = 0; i < count; i++)
        ck_assert(grads[i] == 0);
    reducer_destroy(r);
    model_destroy(m);
    ddp_group_destroy(g);
}
