/* What groups of the nccl backend say when a rank dies at any of NCCL's calls, fails in
 * one, leaves, or calls something else: NCCL itself tells of none of these (fake_nccl.c,
 * as real ones, then waits until it is aborted). */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/duration.h"
#include "common/mem.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct team teams[] = {
    {.size = 3, .backend = "nccl"},
    {.size = 3, .backend = "nccl", .layout = "abc"},
    {.size = 4, .backend = "nccl", .layout = "aabb"},
};

enum { ODD = 1, LONG = 1000, SOON_MS = 20000 }; /* the groups' deadline is 60 s */

static float *a, *b;

static void take_memory(struct ddp_group *g)
{
    int (*alloc)(uint64_t * at, size_t bytes) = NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&alloc = cuda ? dlsym(cuda, "cuMemAlloc_v2") : NULL;
    size_t bytes = LONG * sizeof(float) * (size_t)ddp_group_size(g);
    uint64_t at[2] = {0};
    team_assert(g, alloc && alloc(&at[0], bytes) == 0 && alloc(&at[1], bytes) == 0,
                "no device memory");
    a = (float *)(uintptr_t)at[0];
    b = (float *)(uintptr_t)at[1];
}

static void check_broken(struct ddp_group *g, const struct ddp_err *first)
{
    struct ddp_err err = {""};
    team_assert(g, ddp_barrier(g, &err) == -1, "a barrier of a broken group went well");
    team_assert(g, strcmp(err.text, first->text) == 0, "'%s', then '%s'", first->text,
                err.text);
    team_assert(g, !ddp_isend(g, a, 4, 0, 0, &err), "a send was started");
}

/* ---- deaths and failures ---- */

/* A ring of messages. */
static int ring(struct ddp_group *g, struct ddp_err *err)
{
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    struct ddp_request *out = ddp_isend(g, a, 4, (rank + 1) % size, 0, err), *in;
    in = out ? ddp_irecv(g, b, 4, (rank + size - 1) % size, 0, err) : NULL;
    return in && ddp_wait(in, err) == 0 && ddp_wait(out, err) == 0 ? 0 : -1;
}

/* What is handed to NCCL, two things to die at each: five collectives, and of each of two
 * messages the byte that connects and the message. */
enum { THINGS = 2 * (5 + 2 * 2) };

static int all_calls(struct ddp_group *g, struct ddp_err *err)
{
    return ddp_all_reduce(g, a, LONG, DDP_F32, DDP_SUM, err) == 0 &&
                   ddp_broadcast(g, a, LONG, DDP_F32, 0, err) == 0 && ring(g, err) == 0 &&
                   ddp_reduce(g, a, b, LONG, DDP_F32, DDP_MAX, ODD, err) == 0 &&
                   ddp_barrier(g, err) == 0 &&
                   ddp_all_gather(g, a, b, 10, DDP_F32, err) == 0 &&
                   ddp_scatter(g, a, b, 10, DDP_F32, 0, err) == 0 &&
                   ddp_barrier(g, err) == 0
               ? 0
               : -1;
}

static void fault_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    char at[16], who[32];
    int thing = *(const int *)arg;
    take_memory(g);
    snprintf(at, sizeof at, "%d", abs(thing));
    snprintf(who, sizeof who, "rank %d on ", ODD);
    if (ddp_group_rank(g) == ODD)
        setenv(thing > 0 ? "FAKE_NCCL_DIES" : "FAKE_NCCL_FAILS", at, 1);
    int64_t began = now_ms();
    int rc = all_calls(g, &err), took = (int)(now_ms() - began);
    team_assert(g, rc == -1 && took < SOON_MS, "thing %d: %d after %d ms: %s", thing, rc,
                took, err.text);
    team_assert(g, strstr(err.text, who), "thing %d: %s", thing, err.text);
    team_assert(g, strstr(err.text, thing > 0 ? "gone" : "system error"), "thing %d: %s",
                thing, err.text);
    check_broken(g, &err);
    if (ddp_group_rank(g) == 0)
        printf("thing %d: '%s' after %d ms\n", thing, err.text, took);
}

/* Some of the things for each team, all of them with DDP_TEST_POINTS=all. */
LOOP_TEST(who_dies_at_a_call_is_named, ARRAY_LEN(teams))
{
    struct team t = teams[_i];
    const char *how = getenv("DDP_TEST_POINTS");
    int step = how && strcmp(how, "all") == 0 ? 1 : 4;
    t.expect_dead = ODD + 1;
    for (int thing = step == 1 ? 1 : 1 + _i; thing <= THINGS; thing += step)
        assert_team(&t, fault_case, &thing);
}

LOOP_TEST(who_fails_is_named, ARRAY_LEN(teams))
{
    int thing = -(3 + _i);
    assert_team(&teams[_i], fault_case, &thing);
}

/* A message from a host that is none of those watched in any case (failure_watch.c),
 * while the other ranks call nothing. */
static void far_case(struct ddp_group *g, const void *arg)
{
    enum { FAR = 3 };
    struct ddp_err err = {""};
    atomic_bool *told = *(atomic_bool *const *)arg;
    int rank = ddp_group_rank(g);
    take_memory(g);
    if (rank == FAR) {
        team_ok(g, ddp_send(g, a, 4, 0, 0, &err));
        raise(SIGKILL);
    }
    int64_t began = now_ms();
    if (rank == 0) {
        team_ok(g, ddp_recv(g, a, 4, FAR, 0, &err));
        team_assert(g, ddp_recv(g, a, 4, FAR, 0, &err) == -1, "a message of the dead");
        team_assert(g, strstr(err.text, "rank 3 on "), "%s", err.text);
        *told = true;
    }
    while (!*told && now_ms() - began < SOON_MS)
        poll(NULL, 0, 10);
    team_assert(g, *told, "too late");
}

TEST(a_death_far_away_is_told_to_who_waits_for_its_message)
{
    atomic_bool *told = team_shared(sizeof *told);
    assert_team(
        &(struct team){.size = 4, .layout = "abcd", .backend = "nccl", .expect_dead = 4},
        far_case, &told);
}

/* ---- leaving ---- */

/* One that has done its part may leave while others still wait for a third. */
static void leave_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), last = ddp_group_size(g) - 1;
    take_memory(g);
    team_ok(g, ddp_barrier(g, &err));
    if (rank == ODD)
        return;
    if (rank == last)
        usleep(500000);
    /* a message that the victim is not needed for */
    struct ddp_request *r =
        rank == last ? ddp_isend(g, a, 4, 0, 0, &err) : ddp_irecv(g, a, 4, last, 0, &err);
    if (rank == last || rank == 0)
        team_ok(g, r ? ddp_wait(r, &err) : -1);
    int64_t began = now_ms();
    int rc = ddp_all_reduce(g, a, LONG, DDP_F32, DDP_SUM, &err);
    team_assert(g, rc == -1 && now_ms() - began < SOON_MS, "met a rank that has left");
    char who[32];
    snprintf(who, sizeof who, "rank %d on ", ODD);
    team_assert(g, strstr(err.text, who) && strstr(err.text, "has left the group"), "%s",
                err.text);
}

LOOP_TEST(who_leaves_is_blamed_by_those_who_need_it, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], leave_case, NULL);
}

/* ---- calls that differ ---- */

#include "tests/worker/calls.h"

static const struct {
    int (*others)(struct ddp_group *g, struct ddp_err *err);
    int (*odd)(struct ddp_group *g, struct ddp_err *err);
    const char *said[2];
} pairs[] = {
    {all_reduce, broadcast, {"all_reduce(max) of 256 bytes", "broadcast of 256 bytes"}},
    {barrier, all_reduce, {"calls barrier", "all_reduce(max) of 256"}},
    {all_reduce, all_reduce_long, {"of 256 bytes of f32", "of 4000 bytes of f32"}},
    {broadcast, broadcast_of_odd, {"f32 from rank 0", "f32 from rank 1"}},
    {all_to_all, barrier, {"calls all_to_all of f32", "calls barrier"}},
};

enum { PAIRS_AT = 2 }; /* every second one for each team */

static void disagree_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), all[4] = {0, 1, 2, 3};
    take_memory(g);
    for (size_t i = *(const size_t *)arg; i < ARRAY_LEN(pairs); i += PAIRS_AT) {
        struct ddp_group *sub = ddp_group_sub(g, all, size, &err);
        team_assert(g, sub, "%s", err.text);
        int64_t began = now_ms();
        int rc = (rank == ODD ? pairs[i].odd : pairs[i].others)(sub, &err);
        int took = (int)(now_ms() - began);
        team_assert(g, rc == -1 && took < SOON_MS, "pair %zu: %d after %d ms", i, rc,
                    took);
        team_assert(g,
                    strstr(err.text, "the ranks disagree on collective #") &&
                        strstr(err.text, pairs[i].said[0]) &&
                        strstr(err.text, pairs[i].said[1]),
                    "pair %zu: %s", i, err.text);
        if (rank == 0)
            printf("'%s' after %d ms\n", err.text, took);
        ddp_group_destroy(sub);
        team_ok(g, ddp_barrier(g, &err));
    }
}

LOOP_TEST(who_calls_something_else_is_told, ARRAY_LEN(teams))
{
    size_t first = (size_t)_i % PAIRS_AT;
    assert_team(&teams[_i], disagree_case, &first);
}

/* Calls of which NCCL is content with both. */
static void review_case(struct ddp_group *g, const void *arg)
{
    enum { MANY = 200 };
    struct ddp_err err = {""};
    int rc = 0, i;
    take_memory(g);
    for (i = 0; i < MANY && rc == 0; i++)
        rc = (ddp_group_rank(g) == ODD ? all_reduce_min : all_reduce)(g, &err);
    team_assert(g, rc == -1 && strstr(err.text, "rank 1 calls all_reduce(min)"), "%d: %s",
                i, err.text);
}

/* Between hosts it is told with what is called by one that waits; the first is our own.
 */
static void far_review_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    take_memory(g);
    for (int i = 0; i < 9; i++) {
        bool odd = ddp_group_rank(g) == ODD && i == 3;
        team_ok(g, (odd ? all_reduce_min : all_reduce)(g, &err));
    }
    int rc = 0;
    for (int i = 0; i < 8 && rc == 0; i++) {
        poll(NULL, 0, ddp_group_rank(g) == ODD ? 500 : 0);
        rc = all_reduce(g, &err);
    }
    team_assert(g,
                rc == -1 && strstr(err.text, "the ranks disagree on collective #5") &&
                    strstr(err.text, "rank 1 calls all_reduce(min)"),
                "%d: %s", rc, err.text);
}

TEST(what_goes_well_all_the_same_is_told_in_the_end)
{
    assert_team(&teams[0], review_case, NULL);
    assert_team(&teams[1], far_review_case, NULL);
}
