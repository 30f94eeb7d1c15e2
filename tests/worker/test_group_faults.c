/* When a rank dies, leaves, does not come or calls something else, all other ranks
 * report the same cause in time, and the group can be destroyed. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/duration.h"
#include "common/mem.h"
#include "worker/group/group.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct team teams[] = {
    {.size = 2},
    {.size = 4},
    {.size = 8},
    {.size = 2, .backend = "tcp"},
    {.size = 4, .backend = "tcp"},
    {.size = 8, .backend = "tcp"},
    {.size = 4, .layout = "aabb"},
    {.size = 6, .layout = "aabbcc"},
};

enum { VICTIM = 1, PATIENCE_MS = 20000 };

/* All calls fail now, with the same words. */
static void check_broken(struct ddp_group *g, const struct ddp_err *first)
{
    struct ddp_err err = {""};
    int x = 0;
    team_assert(g, ddp_barrier(g, &err) == -1, "a barrier of a broken group went well");
    team_assert(g, strcmp(err.text, first->text) == 0, "'%s', then '%s'", first->text,
                err.text);
    team_assert(g, ddp_send(g, &x, sizeof x, 0, 0, &err) == -1, "a send went well");
    team_assert(g, !ddp_iall_reduce(g, &x, 1, DDP_I32, DDP_SUM, &err),
                "an all_reduce was started");
    team_assert(g, strcmp(err.text, first->text) == 0, "'%s', then '%s'", first->text,
                err.text);
}

/* It names the victim and `what`, and the group is broken. */
static void check_blames_victim(struct ddp_group *g, const struct ddp_err *err,
                                const char *what)
{
    char who[32];
    snprintf(who, sizeof who, "rank %d on ", VICTIM);
    team_assert(g, strstr(err->text, who) && strstr(err->text, what),
                "does not tell of '%s' and '%s': %s", who, what, err->text);
    check_broken(g, err);
}

static void assert_victim_dies(const struct team *team,
                               void (*fn)(struct ddp_group *g, const void *arg),
                               const void *arg)
{
    struct team t = *team;
    t.expect_dead = VICTIM + 1;
    assert_team(&t, fn, arg);
}

/* The victim dies between two all_reduces, in the middle of one, or before the first. */
static void check_death(struct ddp_group *g, const void *arg)
{
    enum { COUNT = 300000, ROUNDS = 100000 };
    struct ddp_err err = {""};
    int when = *(const int *)arg, rank = ddp_group_rank(g);
    float *x = when % 2 ? ddp_arena_alloc(g, COUNT * 4, &err) : malloc(COUNT * 4);
    for (int i = 0; i < COUNT; i++)
        x[i] = 0.0f;
    if (rank == VICTIM && when == 0)
        raise(SIGKILL);
    if (rank == VICTIM) {
        for (int i = 0; i < 5; i++)
            team_ok(g, ddp_all_reduce(g, x, COUNT, DDP_F32, DDP_SUM, &err));
        struct ddp_request *r = ddp_iall_reduce(g, x, COUNT, DDP_F32, DDP_SUM, &err);
        team_assert(g, r, "%s", err.text);
        raise(SIGKILL);
    }
    struct team_watch began = team_watch();
    int rc = 0;
    for (int i = 0; i < ROUNDS && rc == 0; i++)
        rc = ddp_all_reduce(g, x, COUNT, DDP_F32, DDP_SUM, &err);
    team_assert(g, rc == -1, "no error");
    team_assert(g, team_is_soon(began), "noticed after %lld ms",
                (long long)(now_ms() - began.at_ms));
    check_blames_victim(g, &err, "gone");
    if (when % 2 == 0)
        free(x);
}

LOOP_TEST(a_dead_rank_is_named, 3 * ARRAY_LEN(teams))
{
    int when = _i % 3;
    assert_victim_dies(&teams[_i / 3], check_death, &when);
}

/* A receive from a rank that dies ends soon, too. */
static void check_receive(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    char data[8] = "nothing";
    if (ddp_group_rank(g) == VICTIM)
        raise(SIGKILL);
    struct ddp_request *r = ddp_irecv(g, data, sizeof data, VICTIM, 3, &err);
    if (r) /* unless another rank was faster to find out */
        team_assert(g, ddp_wait(r, &err) == -1, "something came");
    team_assert(g, strcmp(data, "nothing") == 0, "'%.8s' came", data);
    check_blames_victim(g, &err, "gone");
}

LOOP_TEST(a_message_of_the_dead_is_not_awaited, ARRAY_LEN(teams))
{
    assert_victim_dies(&teams[_i], check_receive, NULL);
}

/* Two ranks that wait for each other are told by which calls. */
static void check_crossed(struct ddp_group *g, const void *arg)
{
    const bool *subgroup = arg;
    struct ddp_err err = {""};
    char data[8];
    int me = ddp_group_rank(g);
    if (!*subgroup || me == 0)
        ddp_group_set_timeout(g, 500);
    if (*subgroup && me == 0)
        team_assert(g, !ddp_group_sub(g, (int[]){0, 1}, 2, &err), "a group of one's own");
    else
        team_assert(g, ddp_recv(g, data, 8, 1 - me, 3, &err) == -1, "something came");
    team_assert(g,
                strstr(err.text, *subgroup
                                     ? "'s making of a group with rank "
                                     : "'s receive of 8 bytes with tag 3 from rank "),
                "%s", err.text);
}

LOOP_TEST(messages_that_nobody_sends_are_named, 4)
{
    const bool subgroup = _i % 2;
    assert_team(&(struct team){.size = 2, .backend = _i < 2 ? NULL : "tcp"},
                check_crossed, &subgroup);
}

/* So does polling instead of waiting. */
static void check_polling(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    char data[8];
    if (ddp_group_rank(g) == VICTIM)
        raise(SIGKILL);
    struct ddp_request *r = ddp_irecv(g, data, sizeof data, VICTIM, 3, &err);
    struct team_watch began = team_watch();
    int rc = r ? 0 : -1, done = 0;
    while (rc == 0 && !done && team_is_soon(began)) {
        rc = ddp_test(r, &done, &err);
        usleep(1000);
    }
    team_assert(g, rc == -1 && !done, "no error");
    check_blames_victim(g, &err, "gone");
}

LOOP_TEST(asking_for_a_message_of_the_dead_ends, ARRAY_LEN(teams))
{
    assert_victim_dies(&teams[_i], check_polling, NULL);
}

/* A rank that leaves in order is no failure of what came before. */
static void check_leaving(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    double x = 1.0;
    for (int i = 0; i < 50; i++)
        team_ok(g, ddp_all_reduce(g, &x, 1, DDP_F64, DDP_AVG, &err));
    team_assert(g, x == 1.0, "%g", x);
    if (ddp_group_rank(g) == VICTIM)
        return;
    if (ddp_group_size(g) > 2)
        usleep(20000);
    team_assert(g, ddp_barrier(g, &err) == -1, "met a rank that has left");
    check_blames_victim(g, &err, "");
}

LOOP_TEST(who_leaves_early_is_named, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], check_leaving, NULL);
}

/* It has sent a message, and dies before its part of a collective: the stream of the
 * latter is never opened, and the others have sent all that they had to. */
static void check_message_then_death(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    enum {
        LONG = 10000
    }; /* goes along a chain: only the next one waits for the victim */
    int rank = ddp_group_rank(g), next = (VICTIM + 1) % ddp_group_size(g);
    static double x[LONG];
    if (rank == VICTIM)
        team_ok(g, ddp_send(g, x, 1, next, 1, &err));
    if (rank == next)
        team_ok(g, ddp_recv(g, x, 1, VICTIM, 1, &err));
    if (rank == VICTIM)
        raise(SIGKILL);
    struct team_watch began = team_watch();
    int rc = 0;
    while (rc == 0 && team_is_soon(began))
        rc = ddp_broadcast(g, x, LONG, DDP_F64, VICTIM, &err);
    team_assert(g, rc == -1 && team_is_soon(began), "no error");
    check_blames_victim(g, &err, "gone");
}

LOOP_TEST(a_death_between_a_message_and_a_collective, ARRAY_LEN(teams))
{
    assert_victim_dies(&teams[_i], check_message_then_death, NULL);
}

/* How many have given up waiting; shared by the ranks of a test. */
static _Atomic int *gave_up;

static void check_deadline(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    team_ok(g, ddp_barrier(g, &err));
    ddp_group_set_timeout(g, 300); /* only now: meeting may take its time */
    if (ddp_group_rank(g) == VICTIM) {
        int64_t until = now_ms() + PATIENCE_MS;
        while (*gave_up < ddp_group_size(g) - 1 && now_ms() < until)
            usleep(1000);
        team_assert(g, ddp_barrier(g, &err) == -1, "met ranks that gave up");
        return;
    }
    team_assert(g, ddp_barrier(g, &err) == -1, "met a rank that is not there");
    ++*gave_up;
    team_assert(g, strstr(err.text, "barrier #2: rank "), "%s", err.text);
    check_blames_victim(g, &err, "has not come within 0.3 s");
}

LOOP_TEST(the_deadline_names_who_stays_away, ARRAY_LEN(teams))
{
    gave_up = team_shared(sizeof *gave_up);
    assert_team(&teams[_i], check_deadline, NULL);
}

static void *enter_barrier(void *group)
{
    struct ddp_err err;
    return ddp_barrier(group, &err) < 0 ? group : NULL;
}

/* A call is refused while another thread waits in one. */
static void check_threads(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    pthread_t other;
    void *failed = NULL;
    struct team_watch began = team_watch();
    if (ddp_group_rank(g) == 0) {
        pthread_create(&other, NULL, enter_barrier, g);
        do
            ddp_broadcast(g, NULL, 0, DDP_U8, 9, &err);
        while (!strstr(err.text, "another thread waits in a call") &&
               team_is_soon(began));
        *gave_up = 1;
        pthread_join(other, &failed);
        team_assert(g, strstr(err.text, "another thread") && !failed, "%s", err.text);
    } else {
        while (!*gave_up && team_is_soon(began))
            usleep(1000);
        team_ok(g, ddp_barrier(g, &err));
    }
}

TEST(a_call_beside_a_waiting_thread_is_refused)
{
    gave_up = team_shared(sizeof *gave_up);
    assert_team(&(struct team){.size = 2}, check_threads, NULL);
}

/* All but two ranks stay away from a barrier: all of them are named. */
static void check_missing(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g);
    team_ok(g, ddp_monitored_barrier(g, 0, &err));
    if (rank > 1) {
        usleep(4000000);
        return;
    }
    /* long enough for rank 1 to come on a busy machine */
    ddp_group_set_timeout(g, 2000);
    team_assert(g, (arg ? ddp_barrier(g, &err) : ddp_monitored_barrier(g, 0, &err)) == -1,
                "the barrier passed without all ranks");
    team_assert(g, strstr(err.text, "barrier #2: ranks 2-7 have not come within 2 s"),
                "%s", err.text);
    check_broken(g, &err);
}

LOOP_TEST(a_barrier_names_all_who_are_missing, 4)
{
    assert_team(&(struct team){.size = 8,
                               .layout = _i == 1 ? "aabbccdd" : NULL,
                               .backend = _i == 2 ? "tcp" : NULL},
                check_missing, _i == 3 ? "any" : NULL);
}

/* Rank 0 has no descriptor to ask the others with: they are not blamed. */
static void check_without_descriptors(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    team_ok(g, ddp_barrier(g, &err));
    if (ddp_group_rank(g) != 0) {
        int64_t until = now_ms() + PATIENCE_MS;
        while (*gave_up == 0 && now_ms() < until)
            usleep(1000);
        return;
    }
    struct rlimit limit = {0};
    team_assert(g, getrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
    limit.rlim_cur = 3;
    team_assert(g, setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit stays");
    int rc = ddp_monitored_barrier(g, 300, &err);
    ++*gave_up;
    team_assert(g, rc == -1 && !strstr(err.text, "not come"), "%s", err.text);
    team_assert(g,
                strstr(err.text, "s; 3 could not be asked: too many open files (raise"),
                "%s", err.text);
}

TEST(ranks_that_cannot_be_asked_are_not_blamed)
{
    gave_up = team_shared(sizeof *gave_up);
    assert_team(&(struct team){.size = 4, .backend = "tcp"}, check_without_descriptors,
                NULL);
}

/* Nor said to have gone, if it cannot connect to one. */
static void check_connecting(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    if (ddp_group_rank(g) == 0) {
        struct rlimit limit = {3, 3};
        team_assert(g, setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit stays");
        int rc = ddp_send(g, &limit, sizeof limit, 1, 0, &err);
        ++*gave_up;
        team_assert(g,
                    rc == -1 && strstr(err.text, "rank 0 on ") &&
                        strstr(err.text, " has lost rank 1 on ") &&
                        strstr(err.text, "cannot ask why: too many open files (raise"),
                    "%s", err.text);
    }
    for (int64_t until = now_ms() + PATIENCE_MS; *gave_up == 0 && now_ms() < until;)
        usleep(1000);
}

TEST(ranks_that_cannot_be_reached_for_want_of_descriptors_live)
{
    gave_up = team_shared(sizeof *gave_up);
    assert_team(&(struct team){.size = 2, .backend = "tcp"}, check_connecting, NULL);
}

static void check_message_without_descriptors(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    struct rlimit none = {3, 3};
    int x = 0, other = 1 - ddp_group_rank(g);
    struct ddp_request *r = ddp_irecv(g, &x, sizeof x, other, 0, &err);
    team_ok(g, ddp_send(g, &x, sizeof x, other, 0, &err));
    team_ok(g, ddp_wait(r, &err));
    if (other == 1) {
        ddp_group_set_timeout(g, 300);
        team_assert(g, setrlimit(RLIMIT_NOFILE, &none) == 0, "the limit stays");
        int rc = ddp_recv(g, &x, sizeof x, other, 1, &err);
        ++*gave_up;
        team_assert(g, rc == -1 && strstr(err.text, "too many open files (raise"), "%s",
                    err.text);
    }
    for (int64_t until = now_ms() + PATIENCE_MS; *gave_up == 0 && now_ms() < until;)
        usleep(1000);
}

/* Also by a wait for a message: the sender's connection may be in the queue. */
TEST(a_wait_without_descriptors_says_so)
{
    gave_up = team_shared(sizeof *gave_up);
    assert_team(&(struct team){.size = 2, .backend = "tcp"},
                check_message_without_descriptors, NULL);
}

/* A collective that is made of messages reports a death as well. */
static void check_exchanges(struct ddp_group *g, const void *arg)
{
    enum { COUNT = 100000, ROUNDS = 100000 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), rc = 0;
    float *a = calloc(COUNT * (size_t)size, 4), *b = calloc(COUNT * (size_t)size, 4);
    for (int i = 0; i < (rank == VICTIM ? 2 : ROUNDS) && rc == 0; i++) {
        rc = ddp_all_to_all(g, a, b, COUNT, DDP_F32, &err);
        rc = rc ? rc : ddp_gather(g, a, b, COUNT, DDP_F32, i % size, &err);
    }
    if (rank == VICTIM) {
        team_ok(g, rc);
        raise(SIGKILL);
    }
    check_blames_victim(g, &err, "gone");
    free(a);
    free(b);
}

LOOP_TEST(a_death_ends_what_is_made_of_messages, ARRAY_LEN(teams))
{
    assert_victim_dies(&teams[_i], check_exchanges, NULL);
}

/* A receive from any rank notices the end of one of many that have not sent yet, however
 * many those are. */
static void check_silent(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    char who[32], data[8];
    int rank = ddp_group_rank(g), last = ddp_group_size(g) - 1;
    team_ok(g, ddp_barrier(g, &err));
    if (rank == last)
        raise(SIGKILL);
    int64_t until = now_ms() + PATIENCE_MS;
    while (rank > 0 && !*gave_up && now_ms() < until)
        usleep(5000);
    if (rank > 0)
        return;
    int rc = ddp_recv_any(g, data, sizeof data, 0, NULL, &err);
    *gave_up = 1;
    snprintf(who, sizeof who, "rank %d on ", last);
    team_assert(g, rc == -1 && strstr(err.text, who), "%d: %s", rc, err.text);
}

TEST(one_of_many_silent_ranks_is_missed)
{
    enum { MANY = 72 }; /* more than one look opens streams to */
    gave_up = team_shared(sizeof *gave_up);
    assert_team(&(struct team){.size = MANY, .backend = "tcp", .expect_dead = MANY},
                check_silent, NULL);
}

static void check_disagreement(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    float x[64] = {0};
    int rc = ddp_group_rank(g) == VICTIM
                 ? ddp_broadcast(g, x, 64, DDP_F32, 0, &err)
                 : ddp_all_reduce(g, x, 32, DDP_F32, DDP_MAX, &err);
    if (rc ==
        0) /* a broadcast's root does not wait for the others: the next call tells */
        rc = ddp_barrier(g, &err);
    team_assert(g, rc == -1, "went well");
    team_assert(g,
                strstr(err.text, "disagree") &&
                    strstr(err.text, "broadcast of 256 bytes of f32 from rank 0") &&
                    strstr(err.text, "all_reduce(max) of 128 bytes of f32"),
                "%s", err.text);
    check_broken(g, &err);
}

LOOP_TEST(ranks_that_disagree_are_told, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], check_disagreement, NULL);
}

/* A job that is stopped for longer than the deadline, and goes on. */
static void check_stopped(struct ddp_group *g, const void *arg)
{
    enum { LIMIT_MS = 3000, BETWEEN_MS = 300, STOPPED_MS = 4000, LATE_MS = 1000 };
    struct ddp_err err = {""};
    team_ok(g, ddp_barrier(g, &err));
    ddp_group_set_timeout(g, LIMIT_MS);
    team_stop(BETWEEN_MS, STOPPED_MS);
    for (int ms = 0; ddp_group_rank(g) > 0 && ms < LATE_MS; ms += 100)
        sleep_ms(100);
    team_ok(g, ddp_barrier(g, &err));
}

LOOP_TEST(a_stop_is_no_part_of_the_deadline, 2)
{
    assert_team(&(struct team){.size = 2, .backend = _i ? "tcp" : NULL}, check_stopped,
                NULL);
}

/* A child of rank 0 has a copy of the group, which it can neither use nor leave. */
static void check_child(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int32_t one = 1, two = 0;
    team_ok(g, ddp_all_reduce(g, &one, 1, DDP_I32, DDP_SUM, &err));
    if (ddp_group_rank(g) == 0) {
        int status = -1;
        struct ddp_request *r = ddp_irecv(g, &two, sizeof two, 1, 0, &err);
        pid_t child = fork();
        if (child == 0) {
            bool refused = ddp_barrier(g, &err) < 0 &&
                           strstr(err.text, "this is a fork of rank 0's") &&
                           !ddp_isend(g, &one, sizeof one, 1, 0, &err) &&
                           ddp_wait(r, &err) < 0 && !ddp_arena_alloc(g, 8, &err);
            ddp_group_destroy(g);
            _exit(!refused);
        }
        team_assert(g, waitpid(child, &status, 0) == child && status == 0, "%d", status);
        team_ok(g, ddp_send(g, &one, sizeof one, 1, 1, &err));
        team_ok(g, ddp_wait(r, &err));
        team_assert(g, two == ddp_group_size(g), "%d", (int)two);
    } else if (ddp_group_rank(g) == 1) {
        team_ok(g, ddp_recv(g, &two, sizeof two, 0, 1, &err)); /* the child has ended */
        team_ok(g, ddp_send(g, &one, sizeof one, 0, 0, &err));
    }
    team_ok(g, ddp_all_reduce(g, &one, 1, DDP_I32, DDP_SUM, &err));
    team_assert(g, one == ddp_group_size(g) * ddp_group_size(g), "%d", (int)one);
}

/* A child that outlives its rank does not keep the others from seeing that it is dead. */
static void check_orphan(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    team_ok(g, ddp_barrier(g, &err));
    if (ddp_group_rank(g) == VICTIM) {
        if (fork() > 0)
            raise(SIGKILL);
        for (int64_t until = now_ms() + PATIENCE_MS; !*gave_up && now_ms() < until;)
            usleep(5000);
        _exit(0);
    }
    struct team_watch began = team_watch();
    int rc = ddp_barrier(g, &err);
    bool soon = team_is_soon(began);
    team_assert(g, rc == -1 && soon, "%d: %s", rc, err.text);
    check_blames_victim(g, &err, "has gone");
    *gave_up = 1;
}

LOOP_TEST(a_child_of_a_dead_rank_does_not_hide_that, ARRAY_LEN(teams))
{
    struct team t = teams[_i];
    gave_up = team_shared(sizeof *gave_up);
    t.expect_dead = 1 + VICTIM;
    assert_team(&t, check_orphan, NULL);
}

LOOP_TEST(a_forked_process_has_no_group, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], check_child, NULL);
}

/* Rank 1 plays a stranger that connects to rank 0 again and again, and says nothing. */
static void check_strangers(struct ddp_group *g, const void *arg)
{
    enum { ROUNDS = 4, STRANGERS = 100 };
    struct rlimit few = {ROUNDS * STRANGERS - 50, ROUNDS * STRANGERS - 50};
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), culprit;
    team_assert(g, rank != 0 || setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit");
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; rank == 1 && k < STRANGERS; k++)
            team_assert(g, tcp_start_connect(&g->layout.members[0]) >= 0, "connect");
        team_ok(g, ddp_barrier(g, &err));
        team_assert(g, !tcp_failure_reported(g->tcp, &culprit, &err), "%s", err.text);
    }
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    team_assert(g, file >= 0, "no descriptor is left");
    close(file);
    team_ok(g, ddp_barrier(g, &err));
}

TEST(strangers_do_not_take_all_descriptors)
{
    assert_team(&(struct team){.size = 3, .layout = "abc"}, check_strangers, NULL);
}
