/* The nccl backend, on a libcuda and a libnccl that need no GPU (fake_cuda.c,
 * fake_nccl.c; the loader finds them by LD_LIBRARY_PATH). */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"

#include <dlfcn.h>
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

#define ok(rc) team_check(g, (rc) == 0, "%s", err.text)

static float *device(struct ddp_group *g, size_t count)
{
    int (*alloc)(uint64_t * at, size_t bytes) = NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&alloc = cuda ? dlsym(cuda, "cuMemAlloc_v2") : NULL;
    uint64_t at = 0;
    team_check(g, alloc && alloc(&at, count * sizeof(float)) == 0, "no device memory");
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
        team_check(g, x[i] == scale * (float)(i % 17) + add, "%s: element %zu is %g",
                   what, i, (double)x[i]);
}

static void collectives_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), last = size - 1;
    float n = (float)size, sum = 100 * n * (n - 1) / 2, mine = (float)rank * 100;
    float *a = device(g, COUNT * MAX), *b = device(g, COUNT * MAX);
    size_t counts[MAX] = {COUNT, 17, 0, 34};
    team_check(g, strcmp(ddp_group_backend(g), "nccl") == 0, "%s", ddp_group_backend(g));
    fill(a, COUNT, rank);
    ok(ddp_all_reduce(g, a, COUNT, DDP_F32, DDP_SUM, &err));
    check(g, "all_reduce", a, COUNT, n, sum);
    fill(a, COUNT, rank);
    struct ddp_request *r = ddp_iall_reduce(g, a, COUNT, DDP_F32, DDP_AVG, &err);
    team_check(g, r, "%s", err.text);
    ok(ddp_wait(r, &err));
    check(g, "iall_reduce", a, COUNT, 1, sum / n);
    fill(a, COUNT, rank);
    ok(ddp_broadcast(g, a, COUNT, DDP_F32, last, &err));
    check(g, "broadcast", a, COUNT, 1, 100 * (n - 1));
    fill(a, COUNT, rank);
    ok(ddp_reduce(g, a, rank == last ? b : NULL, COUNT, DDP_F32, DDP_MAX, last, &err));
    check(g, "reduce", b, rank == last ? COUNT : 0, 1, 100 * (n - 1));
    ok(ddp_all_gather(g, a, b, COUNT, DDP_F32, &err));
    for (int k = 0; k < size; k++)
        check(g, "all_gather", b + (size_t)k * COUNT, k ? 17 : COUNT, 1,
              (float)k * 100 + 0 * mine);
    ok(ddp_all_gatherv(g, a, b, counts, DDP_F32, &err));
    const float *at = b;
    for (int k = 0; k < size; at += counts[k++])
        check(g, "all_gatherv", at, counts[k], 1, (float)k * 100);
    for (int k = 0; k < size; k++)
        fill(a + k * 17, 17, rank);
    ok(ddp_reduce_scatter(g, a, b, 17, DDP_F32, DDP_SUM, &err));
    check(g, "reduce_scatter", b, 17, n, sum);
    ok(ddp_all_to_all(g, a, b, 17, DDP_F32, &err));
    for (int k = 0; k < size; k++)
        check(g, "all_to_all", b + k * 17, 17, 1, (float)k * 100);
    ok(ddp_gather(g, a, b, 17, DDP_F32, last, &err));
    for (int k = 0; rank == last && k < size; k++)
        check(g, "gather", b + k * 17, 17, 1, (float)k * 100);
    ok(ddp_scatter(g, a, b, 17, DDP_F32, last, &err));
    check(g, "scatter", b, 17, 1, 100 * (n - 1));
    ok(ddp_barrier(g, &err));
}

START_TEST(collectives_of_device_memory)
{
    team_run(&teams[_i], collectives_case, NULL);
}
END_TEST

/* Both sides send before either receives; groups are made of groups. */
static void messages_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    float *a = device(g, COUNT), *b = device(g, COUNT);
    fill(a, COUNT, rank);
    struct ddp_request *out = ddp_isend(g, a, COUNT * 4, next, 0, &err);
    struct ddp_request *in = ddp_irecv(g, b, COUNT * 4, prev, 0, &err);
    team_check(g, out && in, "%s", err.text);
    ok(ddp_wait(in, &err));
    ok(ddp_wait(out, &err));
    check(g, "message", b, COUNT, 1, (float)prev * 100);
    struct ddp_group *half;
    ok(ddp_group_split(g, rank % 2, 0, &half, &err));
    float one = (float)ddp_group_size(half);
    for (int i = 0; i < COUNT; i++)
        a[i] = 1;
    ok(ddp_all_reduce(half, a, COUNT, DDP_F32, DDP_SUM, &err));
    team_check(g, a[0] == one && a[COUNT - 1] == one, "%g", (double)a[0]);
    ddp_group_destroy(half);
}

START_TEST(messages_of_device_memory)
{
    team_run(&teams[_i], messages_case, NULL);
}
END_TEST

static void nonsense_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    float host[4] = {0}, *there = device(g, 4);
    bool nccl = strcmp(ddp_group_backend(g), "nccl") == 0;
    team_check(g, ddp_all_reduce(g, nccl ? host : there, 4, DDP_F32, DDP_SUM, &err) == -1,
               "took it");
    const char *text = nccl ? "'nccl' moves CUDA memory, and this is not"
                            : "this is CUDA memory, which 'shm' cannot reach";
    team_check(g, strstr(err.text, text), "%s", err.text);
    team_check(g,
               ddp_send(g, nccl ? host : there, 4, 0, 0, &err) == -1 &&
                   strstr(err.text, text),
               "%s", err.text);
    ok(ddp_barrier(g, &err)); /* it is whole */
    if (!nccl)
        return;
    team_check(g,
               ddp_recv_any(g, there, 4, 0, NULL, &err) == -1 &&
                   strstr(err.text, "'nccl' has no messages from anybody"),
               "%s", err.text);
    team_check(g,
               ddp_all_reduce(g, there, 4, DDP_I32, DDP_BOR, &err) == -1 &&
                   strstr(err.text, "'nccl' has no 'bor'"),
               "%s", err.text);
}

START_TEST(memory_of_the_other_kind_is_refused)
{
    team_run(&(struct team){.size = 2, .backend = _i ? "nccl" : NULL}, nonsense_case,
             NULL);
}
END_TEST

/* One never comes back from the call by which NCCL's ranks meet; the library knows no
 * deadline there, we do, and all say the same. The deadline is also that of coming as far
 * as that call, which on a busy machine takes its time: then once more, with a later one.
 */
static bool all_give_up(struct ddp_group *g, int64_t timeout_ms)
{
    static const char cause[] = ": ncclCommInitRank: the 3 ranks have not met within ";
    struct ddp_err err = {""};
    char all[3][sizeof err.text], mine[sizeof err.text] = "";
    struct ddp_group_options o = {
        .rank = -1, .backend = "nccl", .name = "deaf", .timeout_ms = timeout_ms};
    team_check(g, !ddp_group_init(&o, &err), "met one who never came");
    const char *why = strstr(err.text, cause);
    snprintf(mine, sizeof mine, "%s", why ? why : "");
    ok(ddp_all_gather(g, mine, all, sizeof mine, DDP_U8, &err));
    for (int r = 0; r < 3; r++) {
        if (!all[r][0])
            return false;
        team_check(g, strcmp(all[r], all[0]) == 0, "'%s' and '%s'", all[0], all[r]);
    }
    return true;
}

static void deaf_case(struct ddp_group *g, const void *arg)
{
    int64_t timeout_ms = 500;
    setenv("FAKE_NCCL_DEAF", "1", 1);
    for (; timeout_ms < 60000 && !all_give_up(g, timeout_ms); timeout_ms *= 4)
        ;
    team_check(g, timeout_ms < 60000, "NCCL was never the cause");
}

START_TEST(a_meeting_of_nccl_has_a_deadline)
{
    team_run(&(struct team){.size = 3, .layout = _i ? "aab" : NULL}, deaf_case, NULL);
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("nccl");
    TCase *t = tcase_create("nccl");
    tcase_set_timeout(t, 250);
    tcase_add_loop_test(t, collectives_of_device_memory, 0, ARRAY_LEN(teams));
    tcase_add_loop_test(t, messages_of_device_memory, 0, ARRAY_LEN(teams));
    tcase_add_loop_test(t, a_meeting_of_nccl_has_a_deadline, 0, 2);
    tcase_add_loop_test(t, memory_of_the_other_kind_is_refused, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
