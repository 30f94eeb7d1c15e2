/* Groups made from groups: their members, several at once, and a death in them. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "worker/group/group.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct team teams[] = {
    {.size = 4},
    {.size = 7},
    {.size = 6, .backend = "tcp"},
    {.size = 6, .layout = "aabbcc"},
    {.size = 8, .layout = "abcdabcd"},
};

static int sum_over(struct ddp_group *g, struct ddp_group *of, int value)
{
    struct ddp_err err = {""};
    team_ok(g, ddp_all_reduce(of, &value, 1, DDP_I32, DDP_SUM, &err));
    return value;
}

/* Even and odd, backwards; one colour that is none; one of those once more. */
static void split_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *half, *pair, *none;
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    team_ok(g, ddp_group_split(g, rank % 2, -rank, &half, &err));
    int want = 0, members = 0;
    for (int r = rank % 2; r < size; r += 2) {
        want += 1 << r;
        members++;
    }
    team_assert(g, ddp_group_size(half) == members, "%d members", ddp_group_size(half));
    team_assert(g, ddp_group_rank(half) == members - 1 - rank / 2, "I am %d of %d",
                ddp_group_rank(half), members);
    team_assert(g, sum_over(g, half, 1 << rank) == want, "other members");
    team_ok(g, ddp_group_split(g, rank == 0 ? 5 : -1, 0, &none, &err));
    team_assert(g, (none != NULL) == (rank == 0), "a group without a colour");
    team_assert(g, rank > 0 || sum_over(g, none, 7) == 7, "alone is another");
    team_ok(g, ddp_group_split(half, ddp_group_rank(half) / 2, 0, &pair, &err));
    team_assert(g, ddp_group_size(pair) <= 2, "a pair of %d", ddp_group_size(pair));
    int others = sum_over(g, pair, rank) - rank;
    team_assert(g, ddp_group_size(pair) == 1 || others == rank + 2 || others == rank - 2,
                "paired with %d", others);
    ddp_group_destroy(half); /* before what was made of it */
    team_ok(g, ddp_barrier(pair, &err));
    ddp_group_destroy(pair);
    ddp_group_destroy(none);
    team_assert(g, sum_over(g, g, 1) == size, "the whole group is broken");
}

LOOP_TEST(groups_are_split_by_colour_and_key, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], split_case, NULL);
}

/* Two ranks do not spin for each other on the CPUs that a third one needs, too. */
static void shared_cpus_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *pair;
    team_ok(g, ddp_group_split(g, ddp_group_rank(g) / 2, 0, &pair, &err));
    team_assert(g, ddp_group_size(pair) == 1 || pair->spin_ns == g->spin_ns,
                "spins for %d ns, not %d", (int)pair->spin_ns, (int)g->spin_ns);
    ddp_group_destroy(pair);
}

TEST(a_part_of_ranks_that_share_cpus_does_not_spin)
{
    cpu_set_t all, two;
    CPU_ZERO(&two);
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&two) < 2; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &two);
    ck_assert_int_eq(sched_setaffinity(0, sizeof two, &two), 0);
    const struct team team = {.size = 3};
    assert_team(&team, shared_cpus_case, NULL);
}

/* Under way in three groups at once, started and waited for in an order of one's own: who
 * waits in one group must go on with what others need in another. */
static void several_case(struct ddp_group *g, const void *arg)
{
    enum { COUNT = 200000, ROUNDS = 3 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), ranks[8];
    struct ddp_group *half, *back;
    team_ok(g, ddp_group_split(g, rank < size / 2, 0, &half, &err));
    for (int i = 0; i < size; i++)
        ranks[i] = size - 1 - i;
    back = ddp_group_sub(g, ranks, size, &err);
    team_assert(g, back && ddp_group_rank(back) == size - 1 - rank, "%s", err.text);
    struct ddp_group *in[] = {g, half, back};
    float *x[3];
    for (int k = 0; k < 3; k++)
        x[k] = malloc(COUNT * sizeof(float));
    for (int round = 0; round < ROUNDS; round++) {
        struct ddp_request *r[3];
        for (int k = 0; k < 3; k++) {
            int which = (k + rank) % 3;
            for (int i = 0; i < COUNT; i++)
                x[which][i] = (float)(which + 1);
            r[which] =
                ddp_iall_reduce(in[which], x[which], COUNT, DDP_F32, DDP_SUM, &err);
            team_assert(g, r[which], "%s", err.text);
        }
        for (int k = 2; k >= 0; k--)
            team_ok(g, ddp_wait(r[(k + 2 * rank) % 3], &err));
        for (int k = 0; k < 3; k++)
            team_assert(g, x[k][COUNT - 1] == (float)((k + 1) * ddp_group_size(in[k])),
                        "group %d: %g", k, (double)x[k][COUNT - 1]);
    }
    for (int k = 0; k < 3; k++)
        free(x[k]);
    ddp_group_destroy(half);
    ddp_group_destroy(back);
}

LOOP_TEST(several_groups_are_used_at_once, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], several_case, NULL);
}

/* Who only tests in one group makes progress in the other one. */
static void testing_case(struct ddp_group *g, const void *arg)
{
    enum { BYTES = 16 << 20, MESSAGE = 1, ANSWER = 2 };
    struct ddp_err err = {""};
    struct ddp_group *sub;
    char *data = calloc(1, BYTES);
    team_ok(g, ddp_group_split(g, 0, 0, &sub, &err));
    for (int i = 0; i < 2; i++) {
        struct ddp_group *a = i ? sub : g, *b = i ? g : sub;
        int x = 0, done = 0;
        if (ddp_group_rank(g) == 1) {
            team_ok(g, ddp_recv(a, data, BYTES, 0, MESSAGE, &err));
            team_ok(g, ddp_send(b, &x, sizeof x, 0, ANSWER, &err));
        } else {
            struct ddp_request *out = ddp_isend(a, data, BYTES, 1, MESSAGE, &err);
            struct ddp_request *in = ddp_irecv(b, &x, sizeof x, 1, ANSWER, &err);
            while (!done)
                team_ok(g, ddp_test(in, &done, &err));
            team_ok(g, ddp_wait(out, &err));
        }
    }
    free(data);
    ddp_group_destroy(sub);
}

LOOP_TEST(a_test_makes_progress_in_all_groups, 2)
{
    assert_team(&(struct team){.size = 2, .backend = _i ? "tcp" : NULL}, testing_case,
                NULL);
}

/* A death in one group is an error of that group and of the whole, not of others; it is
 * called by its numbers in both. */
static void death_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *half;
    int rank = ddp_group_rank(g), rc = 0;
    team_ok(g, ddp_group_split(g, rank % 2, 0, &half, &err));
    team_ok(g, ddp_barrier(g, &err));
    if (rank == 3)
        raise(SIGKILL);
    for (int i = 0; i < 2000 && rc == 0; i++) {
        int x = 1;
        rc = ddp_all_reduce(half, &x, 1, DDP_I32, DDP_SUM, &err);
    }
    if (rank % 2) {
        team_assert(g, rc == -1 && strstr(err.text, "rank 1 (3 in all) on "), "%s",
                    err.text);
    } else {
        team_ok(g, rc);
    }
    if (rank % 2 == 0)
        team_ok(g, ddp_barrier(half, &err));
    team_assert(g, ddp_barrier(g, &err) == -1 && strstr(err.text, "rank 3 on "), "%s",
                err.text);
    ddp_group_destroy(half);
}

LOOP_TEST(a_death_breaks_the_groups_it_is_in, ARRAY_LEN(teams))
{
    struct team t = teams[_i];
    t.expect_dead = 4;
    assert_team(&t, death_case, NULL);
}

/* Rank 3 enters a call of the whole and dies; rank 2, which has seen it in another group,
 * calls something else: the others hear of the death, and not of two calls. */
static void other_call_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *half;
    int rank = ddp_group_rank(g), x = 1;
    team_ok(g, ddp_group_split(g, rank / 2, 0, &half, &err));
    team_ok(g, ddp_barrier(g, &err));
    struct ddp_request *r =
        rank == 2 ? NULL : ddp_iall_reduce(g, &x, 1, DDP_I32, DDP_SUM, &err);
    if (rank == 3)
        raise(SIGKILL);
    if (rank == 2)
        team_assert(g, ddp_barrier(half, &err) == -1, "a barrier without rank 3");
    team_assert(g, (r ? ddp_wait(r, &err) : ddp_barrier(g, &err)) == -1, "no failure");
    team_assert(g, strstr(err.text, "has gone") && !strstr(err.text, "disagree"), "%s",
                err.text);
    ddp_group_destroy(half);
}

static const char *const layouts[] = {NULL, "aabb", "abab", "abcd"};

LOOP_TEST(a_death_is_the_cause_of_another_call, ARRAY_LEN(layouts))
{
    assert_team(&(struct team){.size = 4, .layout = layouts[_i], .expect_dead = 4},
                other_call_case, NULL);
}

/* A rank that gives up for a death that it has seen in another group has left this one
 * without an error: those who miss it name the death. */
static void give_up_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *half;
    int rank = ddp_group_rank(g);
    team_ok(g, ddp_group_split(g, rank % 2, 0, &half, &err));
    team_ok(g, ddp_barrier(g, &err));
    if (rank == 3)
        raise(SIGKILL);
    if (rank == 1)
        team_assert(g, ddp_barrier(half, &err) == -1, "a barrier without rank 3");
    else
        team_assert(g, ddp_barrier(g, &err) == -1 && strstr(err.text, "rank 3 on "), "%s",
                    err.text);
    ddp_group_destroy(half);
}

TEST(a_rank_that_gives_up_is_not_the_cause)
{
    assert_team(&(struct team){.size = 4, .expect_dead = 4}, give_up_case, NULL);
}

/* The death of rank 3 ends rank 1: those who wait for that in another group of the same
 * ranks name the death. */
static void ended_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *same;
    char data;
    int rank = ddp_group_rank(g), from = rank == 1 ? 3 : 1;
    team_ok(g, ddp_group_split(g, 0, 0, &same, &err));
    team_ok(g, ddp_barrier(g, &err));
    if (rank == 3)
        raise(SIGKILL);
    int rc = ddp_recv(rank == 1 ? g : same, &data, 1, from, 0, &err);
    team_assert(g, rc == -1 && strstr(err.text, "rank 3 on "), "%s", err.text);
    if (rank == 1)
        _exit(0);
    ddp_group_destroy(same);
}

LOOP_TEST(a_rank_that_ends_for_a_death_is_not_the_cause, ARRAY_LEN(layouts))
{
    assert_team(&(struct team){.size = 4, .layout = layouts[_i], .expect_dead = 4},
                ended_case, NULL);
}

/* Descriptors, and mappings of shared memory. */
static int held(void)
{
    int n = 0;
    char line[512];
    DIR *fds = opendir("/proc/self/fd");
    FILE *maps = fopen("/proc/self/maps", "re");
    while (fds && readdir(fds))
        n++;
    while (maps && fgets(line, sizeof line, maps))
        n += strstr(line, "memfd:ddpgroup") != NULL;
    closedir(fds);
    fclose(maps);
    return n;
}

/* Each has sent a message that no rank receives. */
static void ended_groups_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), before = 0;
    for (int i = 0; i < 5; i++) {
        struct ddp_group *all;
        team_ok(g, ddp_group_split(g, 0, -rank, &all, &err));
        team_assert(g, ddp_isend(all, &rank, sizeof rank, (rank + 1) % size, 0, &err),
                    "%s", err.text);
        team_ok(g, ddp_barrier(all, &err));
        ddp_group_destroy(all);
        team_ok(g, ddp_barrier(g, &err));
        if (i == 0) /* streams of the first one are connected */
            before = held();
    }
    team_assert(g, held() == before, "%d descriptors and mappings, then %d", before,
                held());
}

LOOP_TEST(groups_that_have_ended_hold_nothing, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], ended_groups_case, NULL);
}

static void deadline_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *half;
    int rank = ddp_group_rank(g);
    team_ok(g, ddp_group_split(g, rank % 2, 0, &half, &err));
    ddp_group_set_timeout(half, 200);
    if (rank % 2)
        team_assert(g,
                    ddp_recv(half, &rank, sizeof rank, (ddp_group_rank(half) + 1) % 2, 0,
                             &err) == -1 &&
                        strstr(err.text, "within 0.2 s"),
                    "%s", err.text);
    team_ok(g, ddp_barrier(g, &err)); /* which has all the time */
    ddp_group_destroy(half);
}

LOOP_TEST(each_group_has_its_own_deadline, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], deadline_case, NULL);
}

static void nonsense_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g);
    team_assert(g,
                !ddp_group_sub(g, (int[]){rank, rank}, 2, &err) &&
                    strstr(err.text, "is twice in a group"),
                "%s", err.text);
    team_assert(g,
                !ddp_group_sub(g, (int[]){rank, 9}, 2, &err) &&
                    strcmp(err.text, "rank 9 in a group made from 4 ranks") == 0,
                "%s", err.text);
    team_assert(g,
                !ddp_group_sub(g, (int[]){(rank + 1) % 4}, 1, &err) &&
                    strstr(err.text, "makes a group that it is not in"),
                "%s", err.text);
    team_ok(g, ddp_barrier(g, &err)); /* all is well */
    if (rank < 2)                     /* both mean another third one */
        team_assert(g, !ddp_group_sub(g, (int[]){0, 1, 2 + rank}, 2 + rank, &err),
                    "made a group");
    team_assert(
        g, ddp_barrier(g, &err) == -1 && strstr(err.text, "disagree on the members of"),
        "%s", err.text);
}

/* Lists of three and of four: in their meetings one rank sends one card where two are
 * expected. */
static void lists_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g);
    team_assert(g, !ddp_group_sub(g, (int[]){0, 1, 2, 3}, rank == 2 ? 3 : 4, &err),
                "made a group");
    team_assert(g, strstr(err.text, "different lists of ranks"), "%s", err.text);
}

TEST(lists_of_other_lengths_are_told)
{
    assert_team(&(struct team){.size = 4}, lists_case, NULL);
    assert_team(&(struct team){.size = 4, .layout = "aabb"}, lists_case, NULL);
}

/* With one list in two orders each rank is the first of its own. */
static void orders_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct team_watch began = team_watch();
    int rank = ddp_group_rank(g);
    team_assert(g, !ddp_group_sub(g, (int[]){rank, !rank}, 2, &err), "made a group");
    team_assert(g, team_is_soon(began) && strstr(err.text, "in different orders"), "%s",
                err.text);
}

TEST(lists_in_other_orders_are_told)
{
    assert_team(&(struct team){.size = 2}, orders_case, NULL);
    assert_team(&(struct team){.size = 2, .backend = "tcp"}, orders_case, NULL);
}

/* Its own all_gather has the name of the call, also beside one of the same size. */
static void named_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct ddp_group *sub;
    char a[12] = "", b[24];
    int rc = ddp_group_rank(g) ? ddp_all_gather(g, a, b, 12, DDP_U8, &err)
                               : ddp_group_split(g, 0, 0, &sub, &err);
    team_assert(g,
                rc < 0 && strstr(err.text, "rank 0 calls group_split, rank 1 calls "
                                           "all_gather of 24 bytes"),
                "%d: %s", rc, err.text);
}

TEST(a_split_is_called_by_its_name)
{
    assert_team(&(struct team){.size = 2}, named_case, NULL);
    assert_team(&(struct team){.size = 2, .backend = "tcp"}, named_case, NULL);
}

TEST(nonsense_makes_no_group)
{
    assert_team(&(struct team){.size = 4}, nonsense_case, NULL);
}

/* Each comes in time for the one before it, but the first has then waited longer than its
 * deadline in all. */
static void late_case(struct ddp_group *g, const void *arg)
{
    enum { LATE_MS = 2500, LIMIT_MS = 4000 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), all[] = {0, 1, 2};
    if (rank == 0)
        ddp_group_set_timeout(g, LIMIT_MS);
    usleep((useconds_t)rank * LATE_MS * 1000);
    struct ddp_group *sub = ddp_group_sub(g, all, 3, &err);
    team_assert(g, sub, "%s", err.text);
    ddp_group_destroy(sub);
}

TEST(each_late_rank_has_the_deadline)
{
    assert_team(&(struct team){.size = 3}, late_case, NULL);
}

/* ddp_group_sub(), with too little memory for the group on one rank. */
static struct ddp_group *sub_unmapped(struct ddp_group *g, const int *ranks, int n,
                                      int unmapped, struct ddp_err *err)
{
    enum { ROOM = 16 << 20 }; /* less than an arena */
    struct rlimit usual, tight;
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    team_assert(g, f && fscanf(f, "%lu", &pages) == 1, "no size");
    fclose(f);
    getrlimit(RLIMIT_AS, &usual);
    tight = (struct rlimit){pages * (unsigned long)getpagesize() + ROOM, usual.rlim_max};
    if (ddp_group_rank(g) == unmapped)
        setrlimit(RLIMIT_AS, &tight);
    struct ddp_group *sub = ddp_group_sub(g, ranks, n, err);
    setrlimit(RLIMIT_AS, &usual);
    return sub;
}

/* Who cannot map the memory of the group is called by its numbers in both. */
static void unmapped_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), both[] = {0, 2};
    struct ddp_group *sub = rank == 1 ? NULL : sub_unmapped(g, both, 2, 2, &err);
    team_assert(g, !sub, "the memory has been mapped");
    if (rank == 0)
        team_assert(g, strstr(err.text, "rank 1 (2 in all) on "), "%s", err.text);
    team_ok(g, ddp_barrier(g, &err));
}

/* Another host's ranks hear why, and not only that the first one they miss has gone. */
static void unmapped_far_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int all[] = {0, 1, 2, 3};
    struct ddp_group *sub = sub_unmapped(g, all, 4, 3, &err);
    team_assert(g, !sub || ddp_barrier(sub, &err) < 0, "the memory has been mapped");
    team_assert(g, strstr(err.text, "rank 3 on "), "%s", err.text);
    ddp_group_destroy(sub);
    team_ok(g, ddp_barrier(g, &err));
}

/* A rank without descriptors cannot listen, share memory, or accept a connection, in
 * which it must not try in a loop; nor make the memory where files are limited. All are
 * told. */
static const struct lack {
    int rank, files; /* descriptors; -1: enough, but for files of 100 KiB at most */
    const char *own, *others;
} lacks[] = {
    {0, -1, "bytes of shared memory: this process may write 102400 to a file (raise",
     "raise 'ulimit -f'"},
    {0, 4, "share memory: Too many open files", "rank 0 on "},
    {1, 3, ": Too many open files", ": Too many open files"},
    {1, 2, ": Too many open files", "rank 1 on "},
    {1, 1, ": Too many open files", "rank 1 has no address"},
    {1, 0, ": Too many open files", "rank 1 has no address"},
};

static void crowded_case(struct ddp_group *g, const void *arg)
{
    const struct lack *l = arg;
    struct ddp_err err = {""};
    struct team_watch began = team_watch();
    int rank = ddp_group_rank(g), all[] = {0, 1, 2}, next = dup(0);
    struct rlimit usual, tight;
    int what = l->files < 0 ? RLIMIT_FSIZE : RLIMIT_NOFILE;
    close(next);
    getrlimit(what, &usual);
    tight = (struct rlimit){l->files < 0 ? 100 << 10 : (rlim_t)(next + l->files),
                            usual.rlim_max};
    if (rank == l->rank)
        setrlimit(what, &tight);
    struct ddp_group *sub = ddp_group_sub(g, all, 3, &err);
    setrlimit(what, &usual);
    team_assert(g, !sub && team_is_soon(began), "%s", err.text);
    team_assert(g, strstr(err.text, rank == l->rank ? l->own : l->others), "%s",
                err.text);
    team_ok(g, ddp_barrier(g, &err));
}

LOOP_TEST(a_rank_that_lacks_descriptors_is_told_to_all, ARRAY_LEN(lacks))
{
    assert_team(&(struct team){.size = 3}, crowded_case, &lacks[_i]);
}

TEST(who_does_not_join_is_called_by_both_numbers)
{
    assert_team(&(struct team){.size = 3}, unmapped_case, NULL);
    assert_team(&(struct team){.size = 4, .layout = "aabb"}, unmapped_far_case, NULL);
}
