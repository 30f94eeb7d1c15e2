/* Different collectives are reported soon, for any two of them: one rank may
 * wait for a message that no rank sends, or for a rank that waits for a third one.
 *
 * Each pair is tried in a group of its own, made of all ranks; some pairs for each team,
 * with DDP_TEST_PAIRS=all every one. */
#define CASE_SECONDS 280
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/duration.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ODD = 1, LONG = 20000 };

/* They play side by side: most of the time is the groups' before they look around. */
static const struct team teams[] = {{.size = 2, .backend = "tcp"},
                                    {.size = 3, .backend = "tcp"},
                                    {.size = 4, .layout = "abaa"},
                                    {.size = 3}};

static float a[LONG], b[LONG];

#include "tests/worker/calls.h"

TEAM_CALL(reduce, ddp_reduce(g, a, b, 64, DDP_F32, DDP_SUM, 0, err))
TEAM_CALL(all_gather, ddp_all_gather(g, a, b, 64, DDP_F32, err))
TEAM_CALL(reduce_scatter, ddp_reduce_scatter(g, a, b, 64, DDP_F32, DDP_SUM, err))
TEAM_CALL(gather, ddp_gather(g, a, b, 64, DDP_F32, 0, err))
TEAM_CALL(scatter, ddp_scatter(g, a, b, 64, DDP_F32, ODD, err))

/* A rank that polls instead of waiting reports its call as well. */
static int ask(struct ddp_request *r, struct ddp_err *err)
{
    int rc = r ? 0 : -1, done = 0;
    while (rc == 0 && !done)
        rc = ddp_test(r, &done, err);
    return rc;
}

TEAM_CALL(asked_all_reduce, ask(ddp_iall_reduce(g, a, 64, DDP_F32, DDP_SUM, err), err))
TEAM_CALL(asked_all_to_all, ask(ddp_iall_to_all(g, a, b, 64, DDP_I32, err), err))

static const struct {
    int (*call)(struct ddp_group *g, struct ddp_err *err);
    const char *text;
} calls[] = {
    {barrier, "barrier"},
    {broadcast, "broadcast of 256 bytes of f32 from rank 0"},
    {broadcast_of_odd, "broadcast of 256 bytes of f32 from rank 1"},
    {all_reduce, "all_reduce(max) of 256 bytes of f32"},
    {all_reduce_min, "all_reduce(min) of 256 bytes of f32"},
    {all_reduce_long, "all_reduce(max) of 80000 bytes of f32"},
    {reduce, "reduce(sum) of 256 bytes of f32 to rank 0"},
    {all_gather, "all_gather of "},
    {reduce_scatter, "reduce_scatter(sum) of "},
    {gather, "gather of f32 to rank 0"},
    {scatter, "scatter of f32 from rank 1"},
    {all_to_all, "all_to_all of f32"},
    {asked_all_reduce, "all_reduce(sum) of 256 bytes of f32"},
    {asked_all_to_all, "all_to_all of i32"},
};

enum { NCALLS = ARRAY_LEN(calls), NPAIRS = NCALLS * NCALLS };

/* One rank's call is another than the others'. Some end at once if no other rank has to
 * take part; the next call reports it then. */
static int check_pair(struct ddp_group *g, size_t others, size_t odd)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), all[8] = {0};
    for (int i = 0; i < size; i++)
        all[i] = i;
    struct ddp_group *sub = ddp_group_sub(g, all, size, &err);
    team_assert(g, sub, "%s", err.text);
    struct team_watch began = team_watch();
    int rc = calls[rank == ODD ? odd : others].call(sub, &err);
    while (rc == 0 && team_is_soon(began))
        rc = ddp_barrier(sub, &err);
    int took = (int)(now_ms() - began.at_ms);
    team_assert(g, rc == -1 && team_is_soon(began), "%s and %s: %d, after %d ms: %s",
                calls[others].text, calls[odd].text, rc, took, err.text);
    team_assert(g,
                strstr(err.text, "the ranks disagree on ") &&
                    strstr(err.text, "rank 1 calls "),
                "%s and %s: %s", calls[others].text, calls[odd].text, err.text);
    ddp_group_destroy(sub);
    team_assert(g, ddp_barrier(g, &err) == 0, "%s", err.text);
    return took;
}

static void check_pairs(struct ddp_group *g, const void *arg)
{
    const char *how = getenv("DDP_TEST_PAIRS");
    size_t step = how && strcmp(how, "all") == 0 ? 1 : 11, first = *(const size_t *)arg;
    int longest = 0;
    if (step > 1) /* neither of these two gets anything */
        check_pair(g, NCALLS - 1, NCALLS - 2);
    for (size_t i = step > 1 ? first * 3 + 1 : 0; i < NPAIRS; i += step) {
        if (i / NCALLS == i % NCALLS)
            continue;
        int took = check_pair(g, i / NCALLS, i % NCALLS);
        longest = took > longest ? took : longest;
    }
    if (ddp_group_rank(g) == 0)
        printf("%d ranks (%s): told within %d ms\n", ddp_group_size(g),
               ddp_group_backend(g), longest);
}

TEST(any_two_calls_are_told_apart)
{
    static const size_t firsts[] = {0, 1, 2, 3};
    const void *args[ARRAY_LEN(teams)];
    for (size_t i = 0; i < ARRAY_LEN(teams); i++)
        args[i] = &firsts[i];
    assert_teams(teams, ARRAY_LEN(teams), check_pairs, args);
}

/* Calls that only differ in the sizes of their blocks, and calls without data. */
enum { CAN_DIFFER = 3 };

static int alike(struct ddp_group *g, int which, struct ddp_err *err)
{
    bool odd = ddp_group_rank(g) == ODD;
    const size_t counts[] = {odd ? 1 : 3, odd ? 3 : 1, 2, 2};
    if (which == 0)
        return ddp_all_gatherv(g, a, b, counts, DDP_F32, err);
    if (which == 1)
        return ddp_reduce_scatterv(g, a, b, counts, DDP_F32, DDP_SUM, err);
    return odd ? ddp_all_reduce(g, NULL, 0, DDP_F32, DDP_SUM, err) : ddp_barrier(g, err);
}

static void alike_case(struct ddp_group *g, const void *arg)
{
    static const char *const texts[CAN_DIFFER] = {"bytes of f32 with other counts",
                                                  "bytes of f32 with other counts",
                                                  "rank 1 calls all_reduce(sum) of 0"};
    for (int i = 0; i < CAN_DIFFER; i++) {
        struct ddp_err err = {""};
        struct ddp_group *sub;
        team_assert(g, ddp_group_split(g, 0, 0, &sub, &err) == 0, "%s", err.text);
        team_assert(g, alike(sub, i, &err) == -1 && strstr(err.text, texts[i]), "%d: %s",
                    i, err.text);
        ddp_group_destroy(sub);
    }
}

TEST(calls_that_are_nearly_the_same_are_told_apart)
{
    assert_teams(teams, ARRAY_LEN(teams), alike_case, NULL);
}

enum { CROWD = 40, FILES = 36 };

/* The two wait for messages and streams that do not come, so that one must tell the
 * other; then all are told. */
static void crowd_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct team_watch began = team_watch();
    team_assert(g, setrlimit(RLIMIT_NOFILE, &(struct rlimit){FILES, FILES}) == 0,
                "no limit");
    int rc = ddp_group_rank(g) == ODD ? ddp_scatter(g, a, b, 64, DDP_F32, 0, &err)
                                      : ddp_all_reduce(g, a, 64, DDP_F32, DDP_MAX, &err);
    team_assert(g, rc == -1 && team_is_soon(began), "%d: %s", rc, err.text);
    team_assert(g, strstr(err.text, "the ranks disagree on "), "%s", err.text);
}

TEST(more_ranks_than_descriptors_are_told)
{
    assert_team(&(struct team){.size = CROWD, .backend = "tcp"}, crowd_case, NULL);
}
