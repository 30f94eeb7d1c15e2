/* tests/worker/test_saver.c - a slow file system ends no job of which all ranks live, and
 * a stuck one holds none that has failed */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/saver.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GROUP_MS = 2000, SLOW_MS = 5000 };

/* What the file system of rank 1 does: fsync() takes that long. */
static int slow_ms;
/* What a saver takes for the group's timeout; 0: the group's. */
static int64_t timeout_ms;

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int64_t __real_ddp_group_timeout(const struct ddp_group *g);
int64_t __wrap_ddp_group_timeout(const struct ddp_group *g);

int __wrap_fsync(int fd)
{
    poll(NULL, 0, slow_ms);
    return __real_fsync(fd);
}

int64_t __wrap_ddp_group_timeout(const struct ddp_group *g)
{
    return timeout_ms ? timeout_ms : __real_ddp_group_timeout(g);
}

/* A checkpoint of two parts. */
static int save(struct ddp_group *g, const char *place, int *culprit, struct ddp_err *err)
{
    enum { HALF = 8 };
    float weights[2 * HALF] = {1};
    const struct param params[] = {{"a", 1, {HALF}, 0, HALF},
                                   {"b", 1, {HALF}, HALF, HALF}};
    struct optim optim;
    struct replica r = {.model = "some",
                        .params = params,
                        .nparams = ARRAY_LEN(params),
                        .weights = weights,
                        .floats = ARRAY_LEN(weights),
                        .optim = &optim};
    const struct train_state at = {.step = 3, .ranks = ddp_group_size(g)};
    const struct kernels *kernels = kernels_get(NULL, PRECISION_FP32, err);
    team_assert(g, kernels, "%s", err->text);
    optim_init(&optim, optim_find("sgd"), (struct optim_settings){0}, kernels,
               ARRAY_LEN(weights));
    struct saver *s = saver_create(g, place, 0);
    int rc = saver_start(s, &r, &at, NULL, culprit, err);
    if (rc == 0)
        rc = saver_finish(s, culprit, err);
    saver_destroy(s);
    optim_finish(&optim);
    return rc;
}

/* In a folder of its own; the caller frees. */
static char *new_place(void)
{
    OWNED char *folder = temp_dir();
    return xasprintf("%s/c.safetensors", folder);
}

static void save_slowly(struct ddp_group *g, const void *place)
{
    struct ddp_err err;
    int culprit;
    slow_ms = ddp_group_rank(g) == 1 ? SLOW_MS : 0;
    team_ok(g, save(g, place, &culprit, &err));
    team_assert(g, access(place, F_OK) == 0, "no '%s'", (const char *)place);
}

TEST(a_slow_file_system_is_waited_for_beyond_the_timeout_of_the_group)
{
    OWNED char *place = new_place();
    assert_team(&(struct team){.size = 2, .timeout_ms = GROUP_MS}, save_slowly, place);
}

static void save_never(struct ddp_group *g, const void *place)
{
    struct ddp_err err;
    int culprit;
    slow_ms = ddp_group_rank(g) == 1 ? -1 : 0;
    timeout_ms = 20;
    team_assert(g, save(g, place, &culprit, &err) == -1, "no error");
    team_assert(g, culprit == 1, "culprit %d", culprit);
    team_assert(g,
                strstr(err.text, "no checkpoint: rank 1 has not written its part of '") &&
                    strstr(err.text, "is the file system stuck?"),
                "%s", err.text);
}

TEST(a_stuck_file_system_ends_the_job)
{
    OWNED char *place = new_place();
    assert_team(&(struct team){.size = 2}, save_never, place);
}

/* Rank 1 is stuck while rank 2 fails. */
static void save_never_or_nowhere(struct ddp_group *g, const void *place)
{
    struct ddp_err err;
    int culprit, rank = ddp_group_rank(g);
    slow_ms = rank == 1 ? -1 : 0;
    timeout_ms = 1000;
    team_assert(g,
                save(g, rank == 2 ? "/nonexistent/none/c" : place, &culprit, &err) == -1,
                "no error");
    team_assert(g, culprit == 2 && strstr(err.text, "No such file"), "%d: %s", culprit,
                err.text);
}

TEST(a_stuck_file_system_holds_no_rank_when_another_cannot_write)
{
    OWNED char *place = new_place();
    assert_team(&(struct team){.size = 3}, save_never_or_nowhere, place);
}

static void read_slowly(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {"no checkpoint"};
    int culprit, fails = ddp_group_rank(g) == 0;
    poll(NULL, 0, fails ? SLOW_MS : 0);
    team_assert(g, replica_agree_late(g, -fails, NULL, NULL, &culprit, &err) == -1,
                "no error");
    team_assert(g, culprit == 0 && strcmp(err.text, "no checkpoint") == 0, "%d: %s",
                culprit, err.text);
}

TEST(the_outcome_of_a_slow_read_is_waited_for_beyond_the_timeout_of_the_group)
{
    assert_team(&(struct team){.size = 2, .timeout_ms = GROUP_MS}, read_slowly, NULL);
}

static void save_nowhere(struct ddp_group *g, const void *place)
{
    struct ddp_err err;
    int culprit;
    if (ddp_group_rank(g) == 1)
        place = "/nonexistent/none/c";
    team_assert(g, save(g, place, &culprit, &err) == -1, "no error");
    team_assert(g, culprit == 1 && strstr(err.text, "No such file"), "%d: %s", culprit,
                err.text);
}

TEST(a_rank_that_cannot_write_is_named_on_all)
{
    OWNED char *place = new_place();
    assert_team(&(struct team){.size = 3}, save_nowhere, place);
    ck_assert_int_eq(access(place, F_OK), -1);
}
