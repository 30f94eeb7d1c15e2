/* A rank that is slow to report why its group broke must not make others blame the wrong
 * rank.
 *
 * The first cause goes two ways, through the memory of the host and over the network, and
 * each rank that receives it closes its streams and ends. Here one rank at a time dawdles
 * on one of the ways, long enough for all others to be through with everything. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "worker/group/shm.h"
#include "worker/group/tcp.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { VICTIM = 1, DAWDLE_US = 400000 };

static const struct {
    int size;
    const char *layout;
} teams[] = {{4, "aabb"}, {4, "abab"}, {3, "abc"}};

/* 0: not at all, 1: before the memory of the host, 2: before the network */
static int dawdles;

/* Who dies in the midst of telling the memory of the host, and who tells after that. */
enum { TELLER = 2, PATIENCE_MS = 60000 };
struct seen {
    atomic_bool dying;
    char told[4][512];
};
static struct seen *seen; /* shared with the ranks; NULL: no rank dies so */
static bool dies;

static void die(int signal)
{
    atomic_store(&seen->dying, true);
    raise(SIGKILL);
}

static void await_death(void)
{
    for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&seen->dying); ms++)
        usleep(1000);
}

/* Reading it touches a page that is not mapped. */
static const char *deadly_text(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *two =
        mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (two == MAP_FAILED || mprotect(two + page, page, PROT_NONE) < 0)
        _exit(9);
    memset(two, 'x', page);
    signal(SIGSEGV, die);
    return two + page - 100;
}

void __real_shm_fail(struct shm *s, int culprit, const char *why);
void __wrap_shm_fail(struct shm *s, int culprit, const char *why);
void __wrap_shm_fail(struct shm *s, int culprit, const char *why)
{
    if (dawdles == 1)
        usleep(DAWDLE_US);
    if (seen && !dies)
        await_death();
    char text[600];
    snprintf(text, sizeof text, "%.400s, as rank %d says", why, s->ranks[s->me]);
    __real_shm_fail(s, culprit, dies ? deadly_text() : seen ? text : why);
}

void __real_tcp_report_failure(struct tcp *n, int culprit, const char *why, bool to_all);
void __wrap_tcp_report_failure(struct tcp *n, int culprit, const char *why, bool to_all);
void __wrap_tcp_report_failure(struct tcp *n, int culprit, const char *why, bool to_all)
{
    if (dawdles == 2)
        usleep(DAWDLE_US);
    __real_tcp_report_failure(n, culprit, why, to_all);
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
        team_assert(g, rc == 0, "%s", err.text);
        raise(SIGKILL);
    }
    team_assert(g, rc == -1, "no error");
    team_assert(g, strstr(err.text, who) && strstr(err.text, "gone"),
                "rank %d is slow at %d: does not blame %s: %s", slow->rank, slow->how,
                who, err.text);
}

LOOP_TEST(the_first_cause_outlives_a_slow_teller, ARRAY_LEN(teams))
{
    struct team t = {
        .size = teams[_i].size, .layout = teams[_i].layout, .expect_dead = VICTIM + 1};
    for (int rank = 0; rank < t.size; rank++) {
        for (int how = 1; how <= 2 && rank != VICTIM; how++)
            assert_team(&t, cause_case, &(struct slow){rank, how});
    }
}

/* Rank 1 is gone, and rank 2 dies as it says so. */
static void half_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), rc = 0;
    float x = 1;
    dies = rank == TELLER;
    team_assert(g, ddp_barrier(g, &err) == 0, "%s", err.text);
    if (rank == VICTIM)
        _exit(0);
    while (rc == 0)
        rc = ddp_all_reduce(g, &x, 1, DDP_F32, DDP_SUM, &err);
    strcpy(seen->told[rank], err.text);
}

TEST(who_dies_while_it_tells_has_told_nothing)
{
    seen = team_shared(sizeof *seen);
    assert_team(&(struct team){.size = 4, .expect_dead = 1 + TELLER}, half_case, NULL);
    const char *first = seen->told[0];
    ck_assert_msg(strstr(first, "rank 1 on ") || strstr(first, "rank 2 on "), "%s",
                  first);
    /* the first of those that are left said it for both */
    ck_assert_str_eq(first, seen->told[3]);
    ck_assert_msg(strstr(first, ", as rank 0 says") || strstr(first, ", as rank 3 says"),
                  "%s", first);
    munmap(seen, sizeof *seen);
}
