/* A rank whose engine cannot be made, alone among those that share norms, or one that
 * dies while they choose an engine: all are told. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "tests/worker/nn/train_step.h"
#include "worker/engine.h"
#include "worker/run.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 4, POOR = 1, ARENA = 48 << 20 };

/* Too little of the arena is left for the gradients. */
static void spend_arena(struct ddp_group *g)
{
    struct ddp_err err;
    for (size_t room = ARENA; room > 4096; room /= 2)
        ddp_arena_alloc(g, room, &err);
}

static void poor_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct dataset data = {0};
    struct optim optim;
    int rank = ddp_group_rank(g);
    const struct kernels *k = kernels_get(NULL, PRECISION_FP32, &err);
    team_assert(g, dataset_load("digits", NULL, 1, &data, &err) == 0, "%s", err.text);
    struct model *m = model_create("resnet18", data.shape, BATCH, k, &err);
    team_assert(g, m, "%s", err.text);
    optim_init(&optim, optim_find("sgd"), (struct optim_settings){0}, k, m->count);
    struct engine_job job = {.group = g,
                             .model = m,
                             .optim = &optim,
                             .kernels = k,
                             .data = &data,
                             .how.batch_size = BATCH,
                             .how.threads = 1,
                             .how.accumulate = 1,
                             .how.stages = 1,
                             .how.sync_norms = true,
                             .buckets = {1 << 20, 25 << 20, true, false, false}};
    if (rank == POOR)
        spend_arena(g);
    struct engine *e = engine_cpu.open(&job, &err);
    team_assert(g, !e && strstr(err.text, "rank 1: no room for "), "%s", err.text);
    team_assert(g, ddp_barrier(g, &err) == 0, "%s", err.text); /* the group is whole */
    optim_finish(&optim);
    model_destroy(m);
    dataset_finish(&data);
}

TEST(one_without_memory_is_not_awaited)
{
    assert_team(&(struct team){.size = 3}, poor_case, NULL);
}

/* Rank 0 prints the errors that all ranks have, but not that of its own death. */
static void orphan_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct run run = {.group = g, .rank = ddp_group_rank(g), .culprit = 0};
    if (run.rank == 0)
        raise(SIGKILL);
    team_assert(g, !engine_find(NULL, g, (char[100]){""}, 100, &err), "an engine");
    team_assert(g, strstr(err.text, "rank 0 on ") && run_is_culprit(&run), "%s",
                err.text);
}

TEST(who_dies_is_told_of_by_the_others)
{
    assert_team(&(struct team){.size = 2, .expect_dead = 1}, orphan_case, NULL);
}
