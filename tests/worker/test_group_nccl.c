/* The nccl backend, on a libcuda and a libnccl that need no GPU (fake_cuda.c,
 * fake_nccl.c; the loader finds them by LD_LIBRARY_PATH). */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/duration.h"
#include "common/mem.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct team teams[] = {
    {.size = 1, .backend = "nccl"},
    {.size = 2, .backend = "nccl"},
    {.size = 3, .backend = "nccl"},
    {.size = 4, .backend = "nccl", .layout = "aabb"},
};

enum { COUNT = 5000, MAX = 4 };

static float *device(struct ddp_group *g, size_t count)
{
    int (*alloc)(uint64_t * at, size_t bytes) = NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&alloc = cuda ? dlsym(cuda, "cuMemAlloc_v2") : NULL;
    uint64_t at = 0;
    team_assert(g, alloc && alloc(&at, count * sizeof(float)) == 0, "no device memory");
    return (float *)(uintptr_t)at;
}

static void fill(float *x, size_t n, int rank)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rank * 100 + (int)(i % 17));
}

static void check(struct ddp_group *g, const char *what, const float *x, size_t n,
                  float scale, float add)
{
    for (size_t i = 0; i < n; i++)
        team_assert(g, x[i] == scale * (float)(i % 17) + add, "%s: element %zu is %g",
                    what, i, (double)x[i]);
}

static void check_collectives(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), last = size - 1;
    float n = (float)size, sum = 100 * n * (n - 1) / 2;
    float *a = device(g, COUNT * MAX), *b = device(g, COUNT * MAX);
    size_t counts[MAX] = {COUNT, 17, 0, 34};
    team_assert(g, strcmp(ddp_group_backend(g), "nccl") == 0, "%s", ddp_group_backend(g));
    fill(a, COUNT, rank);
    team_ok(g, ddp_all_reduce(g, a, COUNT, DDP_F32, DDP_SUM, &err));
    check(g, "all_reduce", a, COUNT, n, sum);
    fill(a, COUNT, rank);
    struct ddp_request *r = ddp_iall_reduce(g, a, COUNT, DDP_F32, DDP_AVG, &err);
    team_assert(g, r, "%s", err.text);
    team_ok(g, ddp_wait(r, &err));
    check(g, "iall_reduce", a, COUNT, 1, sum / n);
    fill(a, COUNT, rank);
    team_ok(g, ddp_broadcast(g, a, COUNT, DDP_F32, last, &err));
    check(g, "broadcast", a, COUNT, 1, 100 * (n - 1));
    fill(a, COUNT, rank);
    team_ok(g, ddp_reduce(g, a, rank == last ? b : NULL, COUNT, DDP_F32, DDP_MAX, last,
                          &err));
    check(g, "reduce", b, rank == last ? COUNT : 0, 1, 100 * (n - 1));
    team_ok(g, ddp_all_gather(g, a, b, COUNT, DDP_F32, &err));
    for (int k = 0; k < size; k++)
        check(g, "all_gather", b + (size_t)k * COUNT, COUNT, 1, (float)k * 100);
    team_ok(g, ddp_all_gatherv(g, a, b, counts, DDP_F32, &err));
    const float *at = b;
    for (int k = 0; k < size; at += counts[k++])
        check(g, "all_gatherv", at, counts[k], 1, (float)k * 100);
    for (int k = 0; k < size; k++)
        fill(a + k * 17, 17, rank);
    team_ok(g, ddp_reduce_scatter(g, a, b, 17, DDP_F32, DDP_SUM, &err));
    check(g, "reduce_scatter", b, 17, n, sum);
    const size_t uneven[MAX] = {17, 0, 51, 34}; /* of a's elements in their order */
    fill(a, COUNT, rank);
    team_ok(g, ddp_reduce_scatterv(g, a, b, uneven, DDP_F32, DDP_SUM, &err));
    check(g, "reduce_scatterv", b, uneven[rank], n, sum);
    for (int k = 0; k < size; k++)
        fill(a + k * 17, 17, rank);
    team_ok(g, ddp_all_to_all(g, a, b, 17, DDP_F32, &err));
    for (int k = 0; k < size; k++)
        check(g, "all_to_all", b + k * 17, 17, 1, (float)k * 100);
    team_ok(g, ddp_gather(g, a, b, 17, DDP_F32, last, &err));
    for (int k = 0; rank == last && k < size; k++)
        check(g, "gather", b + k * 17, 17, 1, (float)k * 100);
    team_ok(g, ddp_scatter(g, a, b, 17, DDP_F32, last, &err));
    check(g, "scatter", b, 17, 1, 100 * (n - 1));
    team_ok(g, ddp_barrier(g, &err));
}

LOOP_TEST(collectives_of_device_memory, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], check_collectives, NULL);
}

/* Both sides send before either receives; groups are made of groups. */
static void check_messages(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    float *a = device(g, COUNT), *b = device(g, COUNT);
    fill(a, COUNT, rank);
    struct ddp_request *out = ddp_isend(g, a, COUNT * 4, next, 0, &err);
    struct ddp_request *in = ddp_irecv(g, b, COUNT * 4, prev, 0, &err);
    team_assert(g, out && in, "%s", err.text);
    team_ok(g, ddp_wait(in, &err));
    team_ok(g, ddp_wait(out, &err));
    check(g, "message", b, COUNT, 1, (float)prev * 100);
    struct ddp_group *half;
    team_ok(g, ddp_group_split(g, rank % 2, 0, &half, &err));
    float one = (float)ddp_group_size(half);
    for (int i = 0; i < COUNT; i++)
        a[i] = 1;
    team_ok(g, ddp_all_reduce(half, a, COUNT, DDP_F32, DDP_SUM, &err));
    team_assert(g, a[0] == one && a[COUNT - 1] == one, "%g", (double)a[0]);
    ddp_group_destroy(half);
}

LOOP_TEST(messages_of_device_memory, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], check_messages, NULL);
}

/* A message that the other side has not begun is called back, and its channel remains. */
static void check_cancel(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), cancelled = 0;
    float *a = device(g, COUNT), *b = device(g, COUNT);
    fill(a, COUNT, rank);
    struct ddp_request *in = rank == 0 ? ddp_irecv(g, b, COUNT * 4, 1, 0, &err) : NULL;
    if (in) {
        team_ok(g, ddp_cancel(in, &cancelled, &err));
        team_assert(g, cancelled, "not cancelled");
    }
    team_ok(g, ddp_barrier(g, &err));
    if (rank == 1)
        team_ok(g, ddp_send(g, a, COUNT * 4, 0, 0, &err));
    if (rank == 0)
        team_ok(g, ddp_recv(g, b, COUNT * 4, 1, 0, &err));
    check(g, "message", b, rank == 0 ? COUNT : 0, 1, 100);
}

LOOP_TEST(messages_of_device_memory_can_be_cancelled, 2)
{
    assert_team(&teams[1 + _i], check_cancel, NULL);
}

/* ---- what is legal in NCCL does not deadlock here ---- */

enum { PAUSE_MS = 4000, STUCK_MS = 5000 };

static _Atomic int *finished; /* ranks of a round; shared by them */

static struct ddp_request *started(struct ddp_group *g, struct ddp_request *r,
                                   const struct ddp_err *err)
{
    team_assert(g, r, "%s", err->text);
    return r;
}

static void test_once(struct ddp_group *g, struct ddp_request **r)
{
    struct ddp_err err = {""};
    int done = 0;
    team_ok(g, ddp_test(*r, &done, &err));
    if (done)
        *r = NULL;
}

static void wait_for(struct ddp_group *g, struct ddp_request *r)
{
    struct ddp_err err = {""};
    team_ok(g, r ? ddp_wait(r, &err) : 0);
}

/* A receive that has been tested before the send is started, on both sides. */
static void check_receive_first(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    float *a = device(g, COUNT), *b = device(g, COUNT);
    for (int round = 0; round < 3; round++) {
        fill(a, COUNT, rank + round);
        struct ddp_request *in, *out;
        in = started(g, ddp_irecv(g, b, COUNT * 4, prev, 0, &err), &err);
        test_once(g, &in);
        out = started(g, ddp_isend(g, a, COUNT * 4, next, 0, &err), &err);
        wait_for(g, out);
        wait_for(g, in);
        check(g, "message", b, COUNT, 1, (float)(prev + round) * 100);
    }
}

/* Messages and collectives that the ranks start in different orders. */
static void check_mixed(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), last = size - 1;
    float *a = device(g, COUNT), *b = device(g, COUNT), n = (float)size;
    float sum = 100 * n * (n - 1) / 2;
    fill(a, COUNT, rank);
    fill(b, COUNT, rank);
    if (rank == 0) {
        struct ddp_request *out, *all;
        out = started(g, ddp_isend(g, a, COUNT * 4, last, 0, &err), &err);
        all = started(g, ddp_iall_reduce(g, b, COUNT, DDP_F32, DDP_SUM, &err), &err);
        wait_for(g, out);
        wait_for(g, all);
    } else if (rank == last) {
        struct ddp_request *in = started(g, ddp_irecv(g, a, COUNT * 4, 0, 0, &err), &err);
        test_once(g, &in);
        team_ok(g, ddp_all_reduce(g, b, COUNT, DDP_F32, DDP_SUM, &err));
        wait_for(g, in);
        check(g, "message", a, COUNT, 1, 0);
    } else {
        team_ok(g, ddp_all_reduce(g, b, COUNT, DDP_F32, DDP_SUM, &err));
    }
    check(g, "all_reduce", b, COUNT, n, sum);
}

/* Rank 0 waits for what the last one has started and not looked at since. */
static void check_unattended(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), last = ddp_group_size(g) - 1;
    float *a = device(g, COUNT), *b = device(g, COUNT), *c = device(g, COUNT);
    for (int round = 0; round < 2; round++) { /* the first one makes the connections */
        *finished = 0;
        team_ok(g, ddp_barrier(g, &err));
        struct ddp_request *message = NULL, *first, *second;
        if (rank == last)
            message = started(g, ddp_isend(g, a, COUNT * 4, 0, 0, &err), &err);
        else if (rank == 0)
            message = started(g, ddp_irecv(g, a, COUNT * 4, last, 0, &err), &err);
        first = started(g, ddp_iall_reduce(g, b, COUNT, DDP_F32, DDP_SUM, &err), &err);
        second = started(g, ddp_iall_reduce(g, c, COUNT, DDP_F32, DDP_SUM, &err), &err);
        if (rank == last && round > 0) {
            for (int ms = 0; *finished < last && ms < PAUSE_MS; ms++)
                poll(NULL, 0, 1);
            team_assert(g, *finished == last, "%d of %d had to wait", last - *finished,
                        last);
        }
        wait_for(g, message);
        wait_for(g, first);
        wait_for(g, second);
        ++*finished;
        team_ok(g, ddp_barrier(g, &err));
    }
}

static void (*const orders[])(struct ddp_group *g, const void *arg) = {
    check_receive_first, check_mixed, check_unattended};

LOOP_TEST(work_starts_when_it_is_called, ARRAY_LEN(orders))
{
    finished = team_shared(sizeof *finished);
    for (size_t i = 1; i < ARRAY_LEN(teams); i++) {
        struct team t = teams[i];
        t.timeout_ms = STUCK_MS;
        assert_team(&t, orders[_i], NULL);
    }
}

/* The group is left with a collective that never ends, and NCCL does not let go of it. */
static void check_endless_abort(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group_options o = {
        .rank = -1, .backend = "nccl", .name = "again", .timeout_ms = 500};
    setenv("FAKE_NCCL_ABORT_HANGS", "1", 1);
    struct ddp_group *sub = ddp_group_init(&o, &err);
    team_assert(g, sub, "%s", err.text);
    float *a = device(g, COUNT);
    if (ddp_group_rank(g) == 0)
        team_assert(g, ddp_all_reduce(sub, a, COUNT, DDP_F32, DDP_SUM, &err) == -1,
                    "an all_reduce of one rank");
    int64_t began = now_ms();
    ddp_group_destroy(sub);
    team_assert(g, now_ms() - began < 15000, "%d ms", (int)(now_ms() - began));
    team_ok(g, ddp_barrier(g, &err));
}

TEST(an_abort_that_never_returns_is_left_behind)
{
    assert_team(&(struct team){.size = 2}, check_endless_abort, NULL);
}

static void check_refusals(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    float host[4] = {0}, *there = device(g, 4);
    bool nccl = strcmp(ddp_group_backend(g), "nccl") == 0;
    team_assert(g,
                ddp_all_reduce(g, nccl ? host : there, 4, DDP_F32, DDP_SUM, &err) == -1,
                "took it");
    const char *text = nccl ? "'nccl' moves CUDA memory, and this is not"
                            : "this is CUDA memory, which 'shm' cannot reach";
    team_assert(g, strstr(err.text, text), "%s", err.text);
    team_assert(g,
                ddp_send(g, nccl ? host : there, 4, 0, 0, &err) == -1 &&
                    strstr(err.text, text),
                "%s", err.text);
    team_ok(g, ddp_barrier(g, &err)); /* it is whole */
    if (!nccl)
        return;
    team_assert(g,
                ddp_recv_any(g, there, 4, 0, NULL, &err) == -1 &&
                    strstr(err.text, "'nccl' cannot receive from any rank"),
                "%s", err.text);
    team_assert(g,
                ddp_all_reduce(g, there, 4, DDP_I32, DDP_BOR, &err) == -1 &&
                    strstr(err.text, "'nccl' has no 'bor'"),
                "%s", err.text);
}

LOOP_TEST(memory_of_the_other_kind_is_refused, 2)
{
    assert_team(&(struct team){.size = 2, .backend = _i ? "nccl" : NULL}, check_refusals,
                NULL);
}

/* One never comes back from the call by which NCCL's ranks meet; the library knows no
 * deadline there, we do, and all say the same. The deadline is also that of coming as far
 * as that call, which on a busy machine takes its time: then once more, with a later one.
 */
static bool all_give_up(struct ddp_group *g, int64_t timeout_ms)
{
    static const char cause[] = ", ncclCommInitRank: the 3 ranks have not met within ";
    struct ddp_err err = {""};
    char all[3][sizeof err.text], mine[sizeof err.text] = "";
    struct ddp_group_options o = {
        .rank = -1, .backend = "nccl", .name = "deaf", .timeout_ms = timeout_ms};
    team_assert(g, !ddp_group_init(&o, &err), "met one who never came");
    const char *why = strstr(err.text, cause);
    snprintf(mine, sizeof mine, "%s", why ? why : "");
    team_ok(g, ddp_all_gather(g, mine, all, sizeof mine, DDP_U8, &err));
    for (int r = 0; r < 3; r++) {
        if (!all[r][0])
            return false;
        team_assert(g, strcmp(all[r], all[0]) == 0, "'%s' and '%s'", all[0], all[r]);
    }
    return true;
}

static void check_deadline(struct ddp_group *g, const void *arg)
{
    int64_t timeout_ms = 500;
    setenv("FAKE_NCCL_DEAF", "1", 1);
    for (; timeout_ms < 60000 && !all_give_up(g, timeout_ms); timeout_ms *= 4)
        ;
    team_assert(g, timeout_ms < 60000, "NCCL was never the cause");
}

LOOP_TEST(a_meeting_of_nccl_has_a_deadline, 2)
{
    assert_team(&(struct team){.size = 3, .layout = _i ? "aab" : NULL}, check_deadline,
                NULL);
}

static void check_stopped(struct ddp_group *g, const void *arg)
{
    enum { LIMIT_MS = 4000, BETWEEN_MS = 300, STOPPED_MS = 5000 };
    struct ddp_err err = {""};
    bool late = ddp_group_rank(g) == 1;
    struct ddp_group_options o = {.rank = -1,
                                  .backend = "nccl",
                                  .name = "stopped",
                                  .timeout_ms = late ? 60000 : LIMIT_MS};
    if (late)
        setenv("FAKE_NCCL_LATE_MS", "5800", 1);
    else
        team_stop(BETWEEN_MS, STOPPED_MS);
    struct ddp_group *met = ddp_group_init(&o, &err);
    team_assert(g, met, "%s", err.text);
    ddp_group_destroy(met);
}

TEST(a_stop_is_no_part_of_that_deadline)
{
    assert_team(&(struct team){.size = 3}, check_stopped, NULL);
}
