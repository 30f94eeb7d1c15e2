#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/ddp/bucket.h"
#include "worker/ddp/reducer.h"

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
    {"mlp", 28, MIB, 25 * MIB, "fc2.weight fc1.weight"},
    {"mlp", 8, 100 * MIB, 100 * MIB, "fc1.weight"},
    {"linreg", 1, MIB, 25 * MIB, "linear.weight"},
};

static struct model *make(const char *name, int images)
{
    struct ddp_err err;
    int outputs = strcmp(name, "linreg") == 0 ? 1 : 10;
    struct model *m = model_create(name, (struct io_shape){1, images, images, outputs}, 4,
                                   kernels_get("plain", &err), &err);
    ck_assert_msg(m != NULL, "%s", err.text);
    return m;
}

START_TEST(buckets_cover_the_block_backwards)
{
    struct model *m = make(plans[_i].model, plans[_i].images);
    size_t n, end = model_param_count(m);
    const struct param *params = model_params(m, &n);
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
END_TEST

/* Alone, a rank's step is what backward made: nothing is sent and nothing changes. */
START_TEST(a_group_of_one_leaves_gradients_alone)
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
    size_t count = model_param_count(m);
    for (size_t i = 0; i < count; i++)
        grads[i] = (float)i;
    reducer_begin(r, false);
    reducer_ready(0, count, r);
    struct step_sums sums = {.loss = 2.5f, .correct = 3};
    ck_ok(reducer_finish(r, &sums, &err), err);
    ck_assert(sums.loss == 2.5f && sums.correct == 3 && sums.stop == 0);
    for (size_t i = 0; i < count; i++)
        ck_assert(grads[i] == (float)i);
    reducer_begin(r, true);
    for (size_t i = 0; i < count; i++)
        ck_assert(grads[i] == 0);
    reducer_destroy(r);
    model_destroy(m);
    ddp_group_destroy(g);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("bucket");
    TCase *t = tcase_create("bucket");
    tcase_add_loop_test(t, buckets_cover_the_block_backwards, 0, ARRAY_LEN(plans));
    tcase_add_test(t, a_group_of_one_leaves_gradients_alone);
    suite_add_tcase(s, t);
    return s;
}
