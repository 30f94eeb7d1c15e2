/* tests/worker/test_parallel_mistakes.c - include/ddprun/ddp.h: what a caller does wrong
 * is named, on all ranks, and changes no weight */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "include/ddprun/ddp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REFUSED(refused, said) \
    team_assert(g, (refused) && strstr(err.text, said), "%s", err.text)

/* Who forgets a gradient is told which; the others that somebody has. */
static void missing_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_param params[] = {{.name = "first", .count = 37},
                                 {.name = "b", .count = 5000}};
    struct ddp_parallel *p =
        ddp_parallel_create(g, params, ARRAY_LEN(params), NULL, &err);
    struct ddp_step s = {.loss = 1};
    team_assert(g, p && ddp_parallel_begin(p, 1, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < ARRAY_LEN(params); i++)
        if (ddp_group_rank(g) == 0 || i != 0)
            ddp_parallel_ready(p, i);
    const char *said = ddp_group_rank(g) == 1
                           ? "gradient of 'first' is missing: ddp_parallel_ready(p, 0)"
                           : "on another rank";
    REFUSED(ddp_parallel_step(p, 1, &s, &err) < 0, said);
    ddp_parallel_destroy(p);
}

TEST(a_missing_gradient_is_named)
{
    assert_team(&(struct team){.size = 2}, missing_case, NULL);
}

/* A place that rank 0 cannot write to is told to all before the first step. */
static void place_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_param w = {.name = "w", .count = 4};
    const struct ddp_parallel_options nowhere = {.checkpoint = "/nonexistent/none/c"};
    REFUSED(!ddp_parallel_create(g, &w, 1, &nowhere, &err),
            "cannot write checkpoints to '/nonexistent/none/c': No such");
    const struct ddp_parallel_options unnamed = {.checkpoint = ""};
    REFUSED(!ddp_parallel_create(g, &w, 1, &unnamed, &err),
            "cannot write checkpoints to '': No such");
}

TEST(a_place_that_cannot_be_written_is_told_early)
{
    assert_team(&(struct team){.size = 3}, place_case, NULL);
}

/* Mistakes that need no other rank. */
static void refused_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_param none = {.name = "w", .count = 4};
    struct ddp_parallel_options odd = {.optimiser = "newton"};
    REFUSED(!ddp_parallel_create(g, &none, 0, NULL, &err), "no parameters");
    REFUSED(!ddp_parallel_create(g, &none, 1, &odd, &err), "no optimiser 'newton'");
    team_assert(g, !ddp_parallel_create(g, &none, 1, &odd, NULL), "without an error");
    struct ddp_param twice[2] = {none, none};
    const struct ddp_parallel_options saved = {.checkpoint = "c"};
    REFUSED(!ddp_parallel_create(g, twice, 2, &saved, &err),
            "two parameters are called 'w'");
    struct ddp_param nameless = {.count = 4};
    REFUSED(!ddp_parallel_create(g, &nameless, 1, &saved, &err),
            "parameter 0 has no name: a checkpoint needs one");
    uint64_t step;
    struct ddp_parallel *p = ddp_parallel_create(g, &none, 1, NULL, &err);
    REFUSED(ddp_parallel_save(p, 1, &err) < 0, "save(): the options have no checkpoint");
    REFUSED(ddp_parallel_load(p, &step, &err) < 0,
            "load(): the options have no checkpoint");
    REFUSED(ddp_parallel_swap_average(p, &err) < 0,
            "there is no average: it needs options.ema");
    ddp_parallel_destroy(p);
    ddp_parallel_destroy(NULL);
    static const struct {
        float ema;
        const char *text;
    } wrong[] = {{1, "ema is 1: from 0 to below 1"},
                 {NAN, "ema is nan: from 0 to below 1"},
                 {-0.5f, "ema is -0.5: from 0 to below 1"}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        const struct ddp_parallel_options bad = {.ema = wrong[i].ema};
        REFUSED(!ddp_parallel_create(g, &none, 1, &bad, &err), wrong[i].text);
    }
}

TEST(mistakes_are_named)
{
    assert_team(&(struct team){.size = 1}, refused_case, NULL);
}

/* Parameters and options that no rank can take. */
static void unfit_case(struct ddp_group *g, const void *arg)
{
    float same[8];
    const struct ddp_parallel_options saved = {.checkpoint = "c"};
    const struct {
        struct ddp_param params[2];
        struct ddp_parallel_options options;
        const char *said;
    } cases[] = {
        {{{"a", NULL, NULL, 4}, {"b", NULL, NULL, SIZE_MAX}},
         {0},
         "parameter 1 has 1844"},
        {{{"a", same, NULL, 5}, {"b", same + 4, NULL, 4}}, {0}, "have the same weights"},
        {{{"a", NULL, NULL, 4}, {"\xff", NULL, NULL, 4}},
         saved,
         "cannot be called '\xff'"},
        {{{"a", NULL, NULL, 4}, {"optim.exp_avg.a", NULL, NULL, 4}},
         saved,
         "cannot be called 'optim.exp_avg.a'"},
        {{{"a", NULL, NULL, 4}, {"b", NULL, NULL, 0}},
         {.momentum = -1},
         "momentum is -1"},
        {{{"a", NULL, NULL, 4}, {"b", NULL, NULL, 0}},
         {.decay = INFINITY},
         "decay is inf: it must be at least 0, and finite"},
        {{{"a", NULL, NULL, 4}, {"b", NULL, NULL, 0}},
         {.clip_norm = NAN},
         "clip_norm is nan"},
        {{{"a", same + 4, NULL, 4}, {"b", same, NULL, 8}},
         {0},
         "parameters 0 and 1 have the same weights"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ddp_err err = {""};
        struct ddp_param params[2] = {cases[i].params[0], cases[i].params[1]};
        team_assert(g,
                    !ddp_parallel_create(g, params, 2, &cases[i].options, &err) &&
                        strstr(err.text, cases[i].said),
                    "case %zu: %s", i, err.text);
    }
}

TEST(what_cannot_be_trained_is_refused)
{
    assert_team(&(struct team){.size = 1}, unfit_case, NULL);
}

/* Rank 1 has something else, of the same size: all ranks are told. */
static void disagree_case(struct ddp_group *g, const void *arg)
{
    static const struct ddp_parallel_options unlike[] = {{.optimiser = "adam"},
                                                         {.momentum = 0.5f},
                                                         {.replicated = true},
                                                         {.beta2 = 0.9f},
                                                         {.ema = 0.5f}};
    static const char *const said[] = {
        "rank 1 has another optimiser", "rank 1 has another momentum",
        "rank 1 has another replicated", "rank 1 has another beta2",
        "rank 1 has another ema"};
    struct ddp_err err = {""};
    bool odd = ddp_group_rank(g) == 1;
    for (size_t i = 0; i < ARRAY_LEN(unlike); i++) {
        struct ddp_param w = {.name = "w", .count = 4};
        REFUSED(!ddp_parallel_create(g, &w, 1, odd ? &unlike[i] : NULL, &err), said[i]);
    }
    struct ddp_param params[] = {{.name = "a", .count = odd ? 17 : 1000},
                                 {.name = "b", .count = odd ? 1000 : 17}};
    REFUSED(!ddp_parallel_create(g, params, 2, NULL, &err),
            "parameter 0 of rank 1 differs from rank 0's");
    struct ddp_param bias = {.name = "bias", .count = 17, .no_decay = !odd};
    REFUSED(!ddp_parallel_create(g, &bias, 1, NULL, &err), "or no_decay; here it is");
}

TEST(ranks_that_disagree_are_told_before_the_first_step)
{
    assert_team(&(struct team){.size = 3}, disagree_case, NULL);
}

/* Calls in an order that would take a step with the gradients of another, or of averages.
 */
static void misplaced_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_param w = {.name = "w", .count = 40};
    const struct ddp_parallel_options options = {.ema = 0.75f, .checkpoint = arg};
    struct ddp_parallel *p = ddp_parallel_create(g, &w, 1, &options, &err);
    struct ddp_step s = {.loss = 1};
    team_assert(g, p, "%s", err.text);
    team_ok(g, ddp_parallel_begin(p, 1, &err));
    for (size_t k = 0; k < w.count; k++)
        w.grad[k] = 1;
    ddp_parallel_ready(p, 0);
    team_ok(g, ddp_parallel_step(p, 0.5f, &s, &err));
    REFUSED(ddp_parallel_save(p, 0, &err) < 0, "save() at step 0");
    REFUSED(ddp_parallel_step(p, 0.5f, &s, &err) < 0 && w.weight[39] == -0.5f,
            "without ddp_parallel_begin()");
    team_assert(g, ddp_parallel_begin(p, 1, &err) == 0, "%s", err.text);
    REFUSED(ddp_parallel_begin(p, 1, &err) < 0,
            "begin() in a step: ddp_parallel_step() ends it");
    REFUSED(ddp_parallel_save(p, 1, &err) < 0, "save() in a step");
    REFUSED(ddp_parallel_swap_average(p, &err) < 0, "swap_average() in a step");
    ddp_parallel_ready(p, 0);
    ddp_parallel_ready(p, 1);
    REFUSED(ddp_parallel_step(p, 0.5f, &s, &err) < 0,
            "ddp_parallel_ready(p, 1) of 1 parameters");
    ddp_parallel_destroy(p);
}

TEST(calls_in_the_wrong_order_change_no_weight)
{
    OWNED char *dir = temp_dir();
    assert_team(&(struct team){.size = 2}, misplaced_case, dir);
}

/* Of a job that may restart: its memory is a file. */
static void kept_case(struct ddp_group *g, const void *path)
{
    struct ddp_err err = {""};
    struct ddp_param w = {.name = "w", .count = 4};
    uint64_t none = 5;
    struct ddp_parallel *plain = ddp_parallel_create(g, &w, 1, NULL, &err);
    team_assert(g, plain != NULL, "%s", err.text);
    team_ok(g, ddp_parallel_restore(plain, &none, &err)); /* it cannot restart */
    team_assert(g, none == 5, "%d", (int)none);
    team_ok(g, ddp_parallel_keep(plain, 1, &err));
    REFUSED(ddp_parallel_restore(plain, &none, &err) < 0, "before the first step, once");
    ddp_parallel_destroy(plain);
    w.weight = w.grad = NULL;
    if (ddp_group_rank(g) == 0)
        setenv("DDPRUN_KEPT_MEMORY", path, 1);
    plain = ddp_parallel_create(g, &w, 1, NULL, &err);
    team_assert(g, plain != NULL, "%s", err.text);
    REFUSED(ddp_parallel_restore(plain, &none, &err) < 0, "needs a job that may restart");
    ddp_parallel_destroy(plain);
    w.weight = w.grad = NULL;
    setenv("DDPRUN_KEPT_MEMORY", path, 1);
    for (uint64_t run = 0, step = 0; run < 2; run++) {
        struct ddp_parallel *p = ddp_parallel_create(g, &w, 1, NULL, &err);
        team_assert(g, p != NULL, "%s", err.text);
        REFUSED(ddp_parallel_keep(p, 1, &err) < 0,
                "ddp_parallel_keep() needs ddp_parallel_restore() before");
        team_ok(g, ddp_parallel_restore(p, &step, &err));
        team_assert(g, step == 7 * run, "%d", (int)step);
        REFUSED(ddp_parallel_restore(p, &step, &err) < 0,
                "ddp_parallel_restore() comes before the first step, once");
        REFUSED(ddp_parallel_keep(p, 0, &err) < 0,
                "ddp_parallel_keep() at step 0: steps are counted from 1");
        REFUSED(ddp_parallel_keep(p, 8 - (uint64_t)ddp_group_rank(g), &err) < 0,
                "ddp_parallel_keep(): rank 1 has another step than rank 0; here it is");
        team_ok(g, ddp_parallel_keep(p, 7, &err));
        team_ok(g, ddp_parallel_finish(p, &err));
        ddp_parallel_destroy(p);
    }
}

TEST(a_state_is_not_kept_as_that_of_step_0)
{
    int fd = memfd_create("kept", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    char *path = xasprintf("/proc/self/fd/%d", fd);
    assert_team(&(struct team){.size = 2}, kept_case, path);
    free(path);
    close(fd);
}

static bool no_memory;
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

/* Nothing large, when rank 0 is to have no memory for it. */
void *__wrap_calloc(size_t n, size_t size)
{
    enum { LARGE = 1 << 20 };
    return no_memory && size >= LARGE ? NULL : __real_calloc(n, size);
}

/* Two hosts have a set, and rank 0's is replaced: rank 1 sends all, more than a
 * connection takes before rank 0 reads. */
static void fetch_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    uint64_t step = 0;
    bool first = ddp_group_rank(g) == 0;
    for (int run = 0; run < 2; run++) {
        struct ddp_param w = {.name = "w", .count = 1 << 23};
        if (run == 0 || first) {
            OWNED char *path =
                xasprintf("/proc/self/fd/%d", memfd_create("kept", MFD_CLOEXEC));
            setenv("DDPRUN_KEPT_MEMORY", path, 1);
        }
        struct ddp_parallel *p = ddp_parallel_create(g, &w, 1, NULL, &err);
        team_assert(g, p != NULL, "%s", err.text);
        no_memory = run == 1 && first;
        int rc = ddp_parallel_restore(p, &step, &err);
        if (run == 0) {
            team_ok(g, rc);
            team_ok(g, ddp_parallel_keep(p, 7, &err));
            team_ok(g, ddp_parallel_finish(p, &err));
        } else {
            team_assert(g, rc < 0 && strstr(err.text, "rank 0"), "%d: %s", rc, err.text);
        }
        ddp_parallel_destroy(p);
    }
}

/* They do not wait for the deadline, which is later than that of the test. */
TEST(ranks_learn_that_rank_0_has_no_memory_for_what_they_send)
{
    assert_team(
        &(struct team){
            .size = 2, .layout = "ab", .timeout_ms = 3600000, .expect_dead = 1},
        fetch_case, NULL);
}

/* What only rank 1 does wrong is an error on both, at once. */
static void alone_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    bool odd = ddp_group_rank(g) == 1;
    struct ddp_param w = {.name = "w", .count = 4};
    const struct ddp_parallel_options wrong = {.momentum = odd ? -1 : 0};
    REFUSED(!ddp_parallel_create(g, &w, 1, &wrong, &err), "rank 1: momentum is -1");
    const struct ddp_parallel_options said = {
        .optimiser = "sgd", .first_bytes = 1 << 20, .bytes = 25 << 20};
    struct ddp_parallel *p = ddp_parallel_create(g, &w, 1, odd ? &said : NULL, &err);
    struct ddp_step s = {.loss = 1};
    team_assert(g, p, "what is said is the default: %s", err.text);
    team_ok(g, ddp_parallel_begin(p, 1, &err));
    ddp_parallel_ready(p, 0);
    if (odd)
        ddp_parallel_ready(p, (size_t)-1);
    REFUSED(ddp_parallel_step(p, 0.5f, &s, &err) < 0,
            odd ? "ddp_parallel_ready(p, 18446744073709551615) of"
                : "on another rank, its ddp_parallel_ready() got no");
    team_assert(g, w.weight[0] == 0, "%g", (double)w.weight[0]);
    ddp_parallel_destroy(p);
}

TEST(a_mistake_of_one_rank_is_an_error_of_all)
{
    assert_team(&(struct team){.size = 2, .timeout_ms = 60000}, alone_case, NULL);
}

/* By then a rank may have the states of its own pieces only. */
static void late_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    uint64_t step = 1;
    const struct ddp_parallel_options options = {.optimiser = "adam", .checkpoint = arg};
    struct ddp_param param = {.name = "w", .count = 5000};
    struct ddp_parallel *p = ddp_parallel_create(g, &param, 1, &options, &err);
    team_assert(g, p != NULL, "%s", err.text);
    team_assert(
        g,
        ddp_parallel_begin(p, 0, &err) == 0 && ddp_parallel_step(p, 1, NULL, &err) == 0 &&
            ddp_parallel_save(p, 1, &err) == 0 && ddp_parallel_finish(p, &err) == 0,
        "%s", err.text);
    REFUSED(ddp_parallel_save(p, 2 + (uint64_t)ddp_group_rank(g), &err) < 0,
            ddp_group_rank(g) == 0 ? "rank 1 has another step than rank 0; here it is 2"
                                   : "rank 1 has another step than rank 0; here it is 3");
    REFUSED(ddp_parallel_load(p, &step, &err) < 0,
            "ddp_parallel_load() comes before the first step");
    REFUSED(ddp_parallel_restore(p, &step, &err) < 0,
            "ddp_parallel_restore() comes before the first step");
    ddp_parallel_destroy(p);
    /* a damaged one is passed over, whether errors are asked for or not */
    OWNED char *damaged = xasprintf("%s/step-00000009.safetensors", (const char *)arg);
    team_assert(g, ddp_group_rank(g) > 0 || fclose(fopen(damaged, "w")) == 0, "no file");
    p = ddp_parallel_create(g, &param, 1, &options, &err);
    team_assert(g, p && ddp_parallel_load(p, &step, NULL) == 0 && step == 1, "step %d",
                (int)step);
    ddp_parallel_destroy(p);
}

TEST(a_state_is_not_loaded_after_a_step)
{
    OWNED char *dir = temp_dir();
    assert_team(&(struct team){.size = 2}, late_case, dir);
}
