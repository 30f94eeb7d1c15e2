/* Who is slow to tell why its group broke must not make others blame the wrong rank.
 *
 * The first cause goes two ways, through the memory of the host and over the network, and
 * whoever has heard it closes its streams and ends. Here one rank at a time dawdles on
 * one of the ways, long enough for all others to be through with everything. */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "worker/group/net.h"
#include "worker/group/shm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VICTIM = 1, DAWDLE_US = 400000 };

static const struct {
    int size;
    const char *layout;
} teams[] = {{4, "aabb"}, {4, "abab"}, {3, "abc"}};

/* 0: not at all, 1: before the memory of the host, 2: before the network */
static int dawdles;

void __real_shm_fail(struct shm *s, int culprit, const char *why);
void __wrap_shm_fail(struct shm *s, int culprit, const char *why);
void __wrap_shm_fail(struct shm *s, int culprit, const char *why)
{
    if (dawdles == 1)
        usleep(DAWDLE_US);
    __real_shm_fail(s, culprit, why);
}

void __real_net_tell(struct net *n, int culprit, const char *why,
                     enum net_audience audience);
void __wrap_net_tell(struct net *n, int culprit, const char *why,
                     enum net_audience audience);
void __wrap_net_tell(struct net *n, int culprit, const char *why,
                     enum net_audience audience)
{
    if (dawdles == 2)
        usleep(DAWDLE_US);
    __real_net_tell(n, culprit, why, audience);
}

struct slow {
    int rank, how;
};

static void cause_case(struct ddp_group *g, const void *arg)
{
    enum { COUNT = 50000, ROUNDS = 100000 };
    const struct slow *slow = arg;
    struct ddp_err err = {""};
    static float x[COUNT];
    int rank = ddp_group_rank(g), rc = 0;
    char who[32];
    snprintf(who, sizeof who, "rank %d on ", VICTIM);
    dawdles = rank == slow->rank ? slow->how : 0;
    for (int i = 0; i < (rank == VICTIM ? 3 : ROUNDS) && rc == 0; i++)
        rc = ddp_all_reduce(g, x, COUNT, DDP_F32, DDP_SUM, &err);
    if (rank == VICTIM) {
        team_check(g, rc == 0, "%s", err.text);
        raise(SIGKILL);
    }
    team_check(g, rc == -1, "nobody noticed");
    team_check(g, strstr(err.text, who) && strstr(err.text, "gone"),
               "rank %d is slow at %d: does not blame %s: %s", slow->rank, slow->how, who,
               err.text);
}

START_TEST(the_first_cause_outlives_a_slow_teller)
{
    struct team t = {
        .size = teams[_i].size, .layout = teams[_i].layout, .expect_dead = VICTIM + 1};
    for (int rank = 0; rank < t.size; rank++) {
        for (int how = 1; how <= 2 && rank != VICTIM; how++)
            team_run(&t, cause_case, &(struct slow){rank, how});
    }
}
END_TEST

Suite *suite(void)
{
    Suite *s = suite_create("group causes");
    TCase *t = tcase_create("group causes");
    tcase_set_timeout(t, 250);
    tcase_add_loop_test(t, the_first_cause_outlives_a_slow_teller, 0, ARRAY_LEN(teams));
    suite_add_tcase(s, t);
    return s;
}
