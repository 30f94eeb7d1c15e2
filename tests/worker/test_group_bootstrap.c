/* Meeting at an address, without a store, and programs that follow each other at one. */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/meet.h"

#include "common/duration.h"
#include "worker/group/bootstrap.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>

LOOP_TEST(ranks_meet_at_an_address, 2)
{
    static const struct team teams[] = {{.size = 2}, {.size = 6, .layout = "aabbcc"}};
    char url[64], bracketed[80];
    struct team t = teams[_i];
    meet_url(url, sizeof url);
    snprintf(bracketed, sizeof bracketed, "tcp://[127.0.0.1]%s", strrchr(url, ':'));
    t.meeting = _i ? bracketed : url; /* as IPv6 addresses are written */
    assert_team(&t, meet_and_sum, t.meeting);
}

TEST(who_has_not_come_is_named)
{
    struct ddp_err err;
    char url[64];
    meet_url(url, sizeof url);
    meet_alone(
        &(struct ddp_group_options){
            .rank = 0, .size = 3, .timeout_ms = 200, .meeting = url},
        &err);
    ck_assert_msg(strstr(err.text, "2 of 3 ranks have not come to tcp://127.0.0.1:") &&
                      strstr(err.text, "in time: 1-2"),
                  "%s", err.text);
    meet_alone(
        &(struct ddp_group_options){
            .rank = 1, .size = 3, .timeout_ms = 200, .meeting = url},
        &err);
    ck_assert_msg(strstr(err.text, "rank 0 is not at tcp://127.0.0.1:"), "%s", err.text);
}

/* In a process of its own, as `sh -c './a; ./b'` runs it. */
static int run_program(const struct ddp_group_options *o)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct ddp_err err = {""};
        struct ddp_group *g = ddp_group_init(o, &err);
        bool ok = g && ddp_barrier(g, &err) == 0;
        if (!ok)
            fprintf(stderr, "%s\n", err.text);
        ddp_group_destroy(g);
        _exit(!ok);
    }
    return waitpid(pid, &status, 0) == pid ? status : -1;
}

LOOP_TEST(programs_in_sequence_meet_at_a_store, 2)
{
    int port, status;
    pid_t server = team_server(&port), ranks[2];
    for (int r = 0; r < 2; r++) {
        struct ddp_group_options o = {.rank = r,
                                      .size = 2,
                                      .master_addr = "127.0.0.1",
                                      .master_port = port,
                                      .backend = _i ? "tcp" : NULL};
        if ((ranks[r] = fork()) == 0)
            _exit(run_program(&o) || run_program(&o) || run_program(&o));
    }
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(waitpid(ranks[r], &status, 0), ranks[r]);
        ck_assert_int_eq(status, 0);
    }
    kill(server, SIGKILL);
}

/* What rank 0 has shared, which dies: before rank 1 connects, and when rank 2 has. */
static int share_dead(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                      struct ddp_err *err)
{
    int port, fd = sock_listen("127.0.0.1", 0, &port, err);
    snprintf(value, BOOTSTRAP_VALUE, "%d@127.0.0.1@word", port);
    if (m->rank == 1)
        return close(fd);
    pid_t pid = fork();
    if (pid == 0) {
        fcntl(fd, F_SETFL, 0); /* accept() waits */
        _exit(accept(fd, NULL, NULL) < 0);
    }
    return close(fd);
}

LOOP_TEST(a_rank_0_that_has_died_is_not_waited_for, 2)
{
    struct ddp_err err = {""};
    struct card card = {.port = 1}, cards[3];
    struct bootstrap m = {.name = "g",
                          .rank = 1 + _i,
                          .size = 3,
                          .card = &card,
                          .cards = cards,
                          .deadline_ms = now_ms() + 3600000};
    ck_assert_int_eq(bootstrap_by_value(&m, share_dead, "a test", &err), -1);
    ck_assert_msg(strstr(err.text, "rank 0 is no longer at tcp://127.0.0.1:"), "%s",
                  err.text);
}

static struct bootstrap at_x(int rank, int size, const struct card *card,
                             struct card *cards)
{
    return (struct bootstrap){.place = "x",
                              .addr = "127.0.0.1",
                              .name = "g",
                              .rank = rank,
                              .size = size,
                              .card = card,
                              .cards = cards};
}

/* It tries again at a listener that closes without a word, but not after the deadline. */
TEST(a_visit_after_the_deadline_ends)
{
    struct ddp_err err = {""};
    struct card card = {.port = 1}, cards[2];
    struct bootstrap m = at_x(1, 2, &card, cards);
    int fd = sock_listen(m.addr, 0, &m.port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    m.deadline_ms = now_ms();
    ck_assert_int_eq(bootstrap_tcp(&m, &err), -1);
    ck_assert_str_eq(
        err.text,
        "not all ranks have joined at tcp://x in time, and rank 0 does not say which");
    close(fd);
}

static void *join_as_rank_1_of_3(void *arg)
{
    struct bootstrap m = *(struct bootstrap *)arg;
    struct card card = {.host_name = "the\033re"}, cards[3];
    struct ddp_err err = {""};
    m.rank = 1;
    m.size = 3;
    m.card = &card;
    m.cards = cards;
    return bootstrap_tcp(&m, &err) < 0 ? strdup(err.text) : NULL;
}

TEST(ranks_of_two_sizes_both_end)
{
    struct ddp_err err = {""};
    struct card card = {.port = 1}, cards[2];
    struct bootstrap m = at_x(0, 2, &card, cards), theirs;
    pthread_t thread;
    void *said;
    int fd = sock_listen(m.addr, 0, &m.port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    m.deadline_ms = now_ms() + 60000;
    theirs = m;
    pthread_create(&thread, NULL, join_as_rank_1_of_3, &theirs);
    ck_assert_int_eq(bootstrap_tcp_serve(&m, fd, &err), -1);
    close(fd);
    pthread_join(thread, &said);
    ck_assert_str_eq(err.text, "rank 1 speaks of 3 ranks, rank 0 of 2");
    ck_assert_ptr_nonnull(said);
    ck_assert_str_eq(said, err.text);
    free(said);
}

TEST(two_that_are_one_rank_are_told_with_their_hosts)
{
    struct ddp_err err = {""};
    struct card card = {.port = 1}, cards[3];
    struct bootstrap m = at_x(0, 3, &card, cards), theirs;
    pthread_t threads[2];
    void *said;
    int fd = sock_listen(m.addr, 0, &m.port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    m.deadline_ms = now_ms() + 60000;
    theirs = m;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, join_as_rank_1_of_3, &theirs);
    ck_assert_int_eq(bootstrap_tcp_serve(&m, fd, &err), -1);
    close(fd);
    ck_assert_str_eq(err.text, "two ranks at tcp://x are rank 1, on the?re and on "
                               "the?re: given twice, or of two jobs");
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &said);
        ck_assert_str_eq(said, err.text);
        free(said);
    }
}

/* Rank 1 of 3 has a deadline after `theirs_ms`, and rank 0 one after `mine_ms`; rank 2
 * never comes. One that says nothing has connected before. */
static void *miss_rank_2(int64_t theirs_ms, int64_t mine_ms, struct ddp_err *err)
{
    struct card card = {.port = 1}, cards[3];
    struct bootstrap m = at_x(0, 3, &card, cards), one;
    pthread_t thread;
    void *said;
    int fd = sock_listen(m.addr, 0, &m.port, err);
    ck_assert_msg(fd >= 0, "%s", err->text);
    int silent = sock_connect(m.addr, m.port, now_ms() + 1000, false, err);
    one = m;
    m.deadline_ms = now_ms() + mine_ms;
    one.deadline_ms = now_ms() + theirs_ms;
    pthread_create(&thread, NULL, join_as_rank_1_of_3, &one);
    ck_assert_int_eq(bootstrap_tcp_serve(&m, fd, err), -1);
    close(fd);
    close(silent);
    pthread_join(thread, &said);
    ck_assert_ptr_nonnull(said);
    return said;
}

TEST(who_has_not_come_is_named_to_all)
{
    struct ddp_err err = {""};
    char *said = miss_rank_2(60000, 3000, &err);
    ck_assert_str_eq(err.text, "1 of 3 ranks have not come to tcp://x in time: 2");
    ck_assert_str_eq(said, err.text);
    free(said);
}

TEST(who_goes_while_others_are_missing_is_named_at_once)
{
    struct ddp_err err = {""};
    free(miss_rank_2(1500, 60000, &err));
    ck_assert_str_eq(err.text, "rank 1 on the?re has gone or given up at tcp://x");
}

/* Gives up, with a reason that would clear the screen. */
static void *give_up_with_escapes(void *listener)
{
    static const char why[] = "-\033[2Jno\n";
    char intro[4096];
    int fd = accept(*(int *)listener, NULL, NULL);
    ck_assert_int_gt(recv(fd, intro, sizeof intro, 0), 0);
    ck_assert_int_eq(send(fd, why, strlen(why), MSG_NOSIGNAL), (int)strlen(why));
    close(fd);
    return NULL;
}

TEST(control_characters_of_rank_0_are_not_shown)
{
    struct ddp_err err = {""};
    struct card card = {.port = 1}, cards[2];
    struct bootstrap m = at_x(1, 2, &card, cards);
    pthread_t thread;
    int fd = sock_listen(m.addr, 0, &m.port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    fcntl(fd, F_SETFL, 0); /* accept() waits */
    pthread_create(&thread, NULL, give_up_with_escapes, &fd);
    m.deadline_ms = now_ms() + 60000;
    ck_assert_int_eq(bootstrap_tcp(&m, &err), -1);
    pthread_join(thread, NULL);
    close(fd);
    ck_assert_str_eq(err.text, "?[2Jno?");
}

/* Closes each connection, and counts them. */
static void *close_all(void *listener)
{
    intptr_t n = 0;
    for (int fd; (fd = accept(*(int *)listener, NULL, NULL)) >= 0; n++)
        close(fd);
    return (void *)n;
}

/* Nor is it asked a hundred times a second. */
TEST(a_listener_that_is_not_rank_0_is_told)
{
    struct ddp_err err = {""};
    struct card card = {.port = 1}, cards[2];
    struct bootstrap m = at_x(1, 2, &card, cards);
    pthread_t thread;
    void *visits;
    int fd = sock_listen(m.addr, 0, &m.port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    fcntl(fd, F_SETFL, 0); /* accept() waits */
    pthread_create(&thread, NULL, close_all, &fd);
    m.deadline_ms = now_ms() + 1500;
    ck_assert_int_eq(bootstrap_tcp(&m, &err), -1);
    shutdown(fd, SHUT_RDWR);
    pthread_join(thread, &visits);
    ck_assert_str_eq(err.text, "what listens at tcp://x is not rank 0 of this group: it "
                               "closes each connection");
    ck_assert_int_le((intptr_t)visits, 10);
    close(fd);
}

/* Without a descriptor rank 0 cannot accept a connection, and must not try in a loop. */
TEST(more_ranks_than_descriptors_are_an_error)
{
    struct ddp_err err = {""};
    struct card cards[64], card = {.port = 1};
    int port, listener = sock_listen("127.0.0.1", 0, &port, &err);
    ck_assert_msg(listener >= 0, "%s", err.text);
    int caller = sock_connect("127.0.0.1", port, now_ms() + 60000, false, &err);
    ck_assert_msg(caller >= 0, "%s", err.text);
    struct rlimit before, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)caller + 1; /* all below are taken: it got the lowest */
    struct bootstrap m = {.place = "here:1",
                          .name = "x",
                          .size = 64,
                          .deadline_ms = now_ms() + 60000,
                          .card = &card,
                          .cards = cards};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = bootstrap_tcp_serve(&m, listener, &err);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(rc, -1);
    ck_assert_str_eq(err.text,
                     "rank 0 cannot let 63 ranks in at tcp://here:1, since each "
                     "takes a descriptor: Too many open files; see 'ulimit -n'");
    close(caller);
    close(listener);
}

/* Rank 1 comes behind strangers who say nothing, or half of what a rank says. */
TEST(silent_connections_do_not_hold_up_ranks)
{
    enum { STRANGERS = 100, SIZE = 2 };
    struct ddp_err err = {""};
    struct card cards[SIZE], card = {.port = 1};
    int port, fds[STRANGERS], listener = sock_listen("127.0.0.1", 0, &port, &err), status;
    ck_assert_msg(listener >= 0, "%s", err.text);
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = sock_connect("127.0.0.1", port, now_ms() + 60000, false, &err);
        ck_assert_msg(fds[i] >= 0, "%s", err.text);
        ck_assert_int_eq(send(fds[i], "ddpmeet3", (size_t)(i % 2) * 8, 0), i % 2 * 8);
    }
    struct bootstrap m = {.place = "here:1",
                          .name = "x",
                          .addr = "127.0.0.1",
                          .port = port,
                          .size = SIZE,
                          .deadline_ms = now_ms() + 20000,
                          .card = &card,
                          .cards = cards};
    pid_t pid = fork();
    if (pid == 0) {
        m.rank = 1;
        card.port = 2;
        _exit(bootstrap_tcp(&m, &err) < 0);
    }
    ck_ok(bootstrap_tcp_serve(&m, listener, &err), err);
    ck_assert_int_eq(cards[1].port, 2);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    close(listener);
}

/* Rank 1 as from another continent, until rank 0 answers. */
static void *join_from_afar(void *port)
{
    struct {
        char magic[8];
        int32_t rank, size;
        char name[200];
        struct card card;
    } intro = {.magic = "ddpmeet3", .rank = 1, .size = 2, .name = "x"};
    struct card cards[2];
    struct ddp_err err;
    int64_t until = now_ms() + 60000;
    bool joined = false;
    while (!joined && now_ms() < until) {
        int fd = sock_connect("127.0.0.1", *(int *)port, until, false, &err);
        sleep_ms(300);
        joined = fd >= 0 && sock_write_all(fd, &intro, sizeof intro, until) == 0 &&
                 sock_read_all(fd, cards, sizeof cards, until) == 0;
        close(fd);
    }
    return joined ? port : NULL;
}

TEST(an_introduction_may_come_after_its_connection)
{
    struct ddp_err err = {""};
    struct card cards[2], card = {.port = 1};
    pthread_t thread;
    void *joined;
    int port, listener = sock_listen("127.0.0.1", 0, &port, &err);
    ck_assert_msg(listener >= 0, "%s", err.text);
    struct bootstrap m = {.place = "here:1",
                          .name = "x",
                          .size = 2,
                          .deadline_ms = now_ms() + 60000,
                          .card = &card,
                          .cards = cards};
    pthread_create(&thread, NULL, join_from_afar, &port);
    ck_ok(bootstrap_tcp_serve(&m, listener, &err), err);
    pthread_join(thread, &joined);
    ck_assert_ptr_nonnull(joined);
    close(listener);
}

TEST(places_that_are_none_are_refused)
{
    static const struct {
        const char *url, *text;
    } cases[] = {
        {"mpi://x", "'mpi://x' is not a place to meet: env://, tcp://host:port, "},
        {"tcp://host", "'host' is not host:port"},
        {"tcp://:80", "':80' is not host:port"},
        {"tcp://h:0", "'h:0' is not host:port"},
        {"tcp://h:8x", "'h:8x' is not host:port"},
        {"file://here", "'file://here' is not file:///path"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ddp_err err = {""};
        struct ddp_group_options o = {.rank = 0, .size = 2, .meeting = cases[i].url};
        ck_assert_ptr_null(ddp_group_init(&o, &err));
        ck_assert_msg(strstr(err.text, cases[i].text), "%s", err.text);
    }
}

static void set_or_unset(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

TEST(a_store_without_an_address_is_refused)
{
    static const struct {
        const char *addr, *port, *unset;
    } cases[] = {{NULL, NULL, "MASTER_ADDR"},
                 {"", "29500", "MASTER_ADDR"},
                 {"127.0.0.1", NULL, "MASTER_PORT"},
                 {"127.0.0.1", "", "MASTER_PORT"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct ddp_group_options o = {.rank = 0, .size = 2, .meeting = "env://"};
        struct ddp_err err = {""};
        OWNED char *text =
            xasprintf("%s is not set: start this program with ddprun, or set it to "
                      "the store's ",
                      cases[i].unset);
        set_or_unset("MASTER_ADDR", cases[i].addr);
        set_or_unset("MASTER_PORT", cases[i].port);
        ck_assert_ptr_null(ddp_group_init(&o, &err));
        ck_assert_msg(strstr(err.text, text), "%s", err.text);
    }
}
