/* The server's border with the launcher: admission, tickets, scopes, notices, drain. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "rendezvous/server/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000 };

static struct loop *l;
static struct server *s;
static struct ddp_err err;
static struct server_ticket *tickets[8];
static int ntickets, answer_at_once; /* 0: later; 1: admit; -1: refuse */
static char peers[8][64], locals[8][64], notices[8][200];
static int nnotices;
static long drained;

static void on_connection(struct server_ticket *t, const struct sockaddr *peer,
                          const struct sockaddr *local, void *arg)
{
    ck_assert_ptr_eq(arg, &ntickets);
    sock_name(peer, peers[ntickets], sizeof peers[0]);
    sock_name(local, locals[ntickets], sizeof locals[0]);
    tickets[ntickets++] = t;
    if (answer_at_once)
        server_admit(t, answer_at_once > 0, 0, "wrong user");
}

static void on_notice(const char *line, void *arg)
{
    snprintf(notices[nnotices++ % 8], sizeof notices[0], "%s", line);
}

static void on_refused(const struct sockaddr *peer, const char *why, void *arg)
{
    char name[64];
    sock_name(peer, name, sizeof name);
    snprintf(notices[nnotices++ % 8], sizeof notices[0], "%s: %s", name, why);
}

static void on_drained(size_t closed, void *arg)
{
    drained = (long)closed;
}

static void start(struct server_options o)
{
    o.addr = o.listen_fd ? NULL : "127.0.0.1";
    o.notice = on_notice;
    o.refused = on_refused;
    o.ask_arg = &ntickets;
    s = server_create(l, &o, &err);
    ck_assert_msg(s != NULL, "%s", err.text);
}

static void setup(void)
{
    l = loop_create(NULL);
    s = NULL;
    ntickets = nnotices = answer_at_once = 0;
    drained = -1;
}

static void teardown(void)
{
    server_destroy(s);
    loop_destroy(l);
}

static void turn(void)
{
    ck_assert_int_ge(event_base_loop(loop_base(l), EVLOOP_ONCE | EVLOOP_NONBLOCK), 0);
}

#define UNTIL(condition)                                         \
    for (int64_t end_ = now_ms() + PATIENCE_MS; !(condition);) { \
        ck_assert_msg(now_ms() < end_, "never: %s", #condition); \
        turn();                                                  \
    }

static int connected(void)
{
    int fd =
        sock_connect("127.0.0.1", server_port(s), now_ms() + PATIENCE_MS, false, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    return fd;
}

/* VALIDATE, then ADD "/n" 1: the answer tells how many have been in this scope. */
static const char count_me[] = "\0\xce\xf7\x85\x3c"
                               "\x04\x02\0\0\0\0\0\0\0/n\x01\0\0\0\0\0\0";

static void ask(int fd)
{
    ck_assert_int_eq(send(fd, count_me, sizeof count_me, MSG_NOSIGNAL), sizeof count_me);
}

/* >= 0: the answer; -1: closed. */
static int64_t answer(int fd)
{
    int64_t n = 0;
    ssize_t got = -1;
    UNTIL((got = recv(fd, &n, sizeof n, 0)) >= 0 || errno != EAGAIN)
    return got == sizeof n ? n : -1;
}

/* What the next client gets, which is admitted. */
static int64_t answer_of_next(void)
{
    int fd = connected();
    answer_at_once = 1;
    ask(fd);
    int64_t n = answer(fd);
    close(fd);
    return n;
}

static bool silent(int fd)
{
    char byte;
    for (int i = 0; i < 20; i++)
        turn();
    return recv(fd, &byte, 1, 0) < 0 && errno == EAGAIN;
}

FIXTURE(setup, teardown)

TEST(an_open_server_puts_all_clients_in_scope_0)
{
    start((struct server_options){0});
    for (int i = 1; i <= 3; i++) {
        int fd = connected();
        ask(fd);
        ck_assert_int_eq(answer(fd), i);
        close(fd);
    }
    UNTIL(server_stats(s).connections == 0)
    struct server_stats st = server_stats(s);
    ck_assert_uint_eq(st.accepted, 3);
    ck_assert_uint_eq(st.refused, 0);
    ck_assert_uint_eq(st.requests, 3);
    ck_assert_uint_eq(st.keys, 1);
}

TEST(the_admission_callback_gets_both_addresses)
{
    start((struct server_options){.ask = on_connection});
    answer_at_once = 1;
    int fd = connected();
    ask(fd);
    ck_assert_int_eq(answer(fd), 1);
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    char name[64];
    getsockname(fd, (struct sockaddr *)&ss, &len);
    sock_name((struct sockaddr *)&ss, name, sizeof name);
    ck_assert_str_eq(peers[0], name);
    snprintf(name, sizeof name, "127.0.0.1:%d", server_port(s));
    ck_assert_str_eq(locals[0], name);
    close(fd);
}

TEST(pending_requests_are_served_after_admission)
{
    start((struct server_options){.ask = on_connection});
    int fd = connected();
    ask(fd);
    UNTIL(ntickets == 1)
    ck_assert(silent(fd));
    server_admit(tickets[0], true, 0, NULL);
    ck_assert_int_eq(answer(fd), 1);
    close(fd);
}

TEST(each_scope_has_its_own_keys)
{
    start((struct server_options){.ask = on_connection});
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = connected();
        ask(fds[i]);
        UNTIL(ntickets == i + 1)
        server_admit(tickets[i], true, 7 + (unsigned)i % 2, NULL);
        ck_assert_int_eq(answer(fds[i]), 1 + i / 2);
    }
    for (int i = 0; i < 4; i++)
        close(fds[i]);
}

TEST(a_rejected_client_is_closed_and_reported)
{
    start((struct server_options){.ask = on_connection});
    answer_at_once = -1;
    int fd = connected();
    ck_assert_int_eq(answer(fd), -1);
    char line[200];
    snprintf(line, sizeof line, "%s: wrong user", peers[0]);
    ck_assert_str_eq(notices[0], line);
    ck_assert_uint_eq(server_stats(s).refused, 1);
    close(fd);
}

/* The connection that has waited longest for admission is closed; admitted ones stay. */
TEST(the_oldest_pending_connection_is_dropped)
{
    start((struct server_options){.ask = on_connection, .max_connections = 3});
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = connected();
        ask(fds[i]);
        UNTIL(ntickets == i + 1)
        if (i == 0)
            server_admit(tickets[0], true, 0, NULL);
    }
    ck_assert_int_eq(answer(fds[0]), 1);
    ck_assert_int_eq(answer(fds[1]), -1);
    ck_assert_ptr_nonnull(strstr(notices[0], "3 connections are the limit"));
    for (int i = 1; i < 4; i++)
        server_admit(tickets[i], true, 0, NULL);
    ck_assert_int_eq(answer(fds[2]), 2);
    ck_assert_int_eq(answer(fds[3]), 3);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
}

/* The ticket stays valid: the answer may come too late. */
TEST(an_unanswered_admission_times_out)
{
    start((struct server_options){.ask = on_connection, .ask_timeout_ms = 20});
    int fd = connected();
    UNTIL(ntickets == 1)
    ck_assert_int_eq(answer(fd), -1);
    ck_assert_ptr_nonnull(strstr(notices[0], "it was not admitted in time"));
    server_admit(tickets[0], true, 0, NULL);
    ck_assert_uint_eq(server_stats(s).connections, 0);
    close(fd);
}

TEST(a_client_that_leaves_while_pending_is_forgotten)
{
    start((struct server_options){.ask = on_connection});
    int fd = connected();
    UNTIL(ntickets == 1)
    close(fd);
    server_admit(tickets[0], true, 0, NULL);
    UNTIL(server_stats(s).connections == 0)
}

/* Its two ends may be those of another client now, which is admitted. */
TEST(what_a_client_has_sent_before_a_reset_is_not_done)
{
    start((struct server_options){.ask = on_connection});
    int fd = connected();
    ask(fd);
    UNTIL(ntickets == 1)
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(fd);
    server_admit(tickets[0], true, 0, NULL);
    ck_assert_ptr_nonnull(strstr(notices[0], "its socket has been closed already"));
    ck_assert_int_eq(answer_of_next(), 1);
}

TEST(destroying_the_server_ends_open_tickets)
{
    start((struct server_options){.ask = on_connection});
    int fd = connected();
    UNTIL(ntickets == 1)
    server_destroy(s);
    s = NULL;
    ck_assert_int_eq(answer(fd), -1);
    close(fd);
}

TEST(dropping_a_scope_closes_its_waiters_and_forgets_its_keys)
{
    static const char wait[] = "\x06\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0/no";
    start((struct server_options){.ask = on_connection});
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = connected();
        ask(fds[i]);
        UNTIL(ntickets == i + 1)
        server_admit(tickets[i], true, i == 2, NULL);
        ck_assert_int_ge(answer(fds[i]), 1);
    }
    for (int i = 0; i < 3; i += 2)
        ck_assert_int_eq(send(fds[i], wait, sizeof wait - 1, 0), sizeof wait - 1);
    UNTIL(server_stats(s).waiters == 2)
    server_drop_scope(s, 0);
    ck_assert_int_eq(answer(fds[0]), -1);
    ck_assert_ptr_nonnull(strstr(notices[0], "closed: the keys it waited for have been"));
    ck_assert(silent(fds[1]));
    ck_assert(silent(fds[2]));
    ck_assert_uint_eq(server_stats(s).keys, 1);
    ck_assert_uint_eq(server_stats(s).waiters, 1);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

TEST(a_socket_that_listens_already_is_taken_over)
{
    int port;
    int listener = sock_listen("127.0.0.1", 0, &port, &err);
    ck_assert_int_gt(listener, 0);
    start((struct server_options){.listen_fd = listener});
    ck_assert_int_eq(server_port(s), port);
    int fd = connected();
    ask(fd);
    ck_assert_int_eq(answer(fd), 1);
    close(fd);
}

TEST(a_busy_port_is_an_error)
{
    start((struct server_options){0});
    struct server_options o = {.addr = "127.0.0.1", .port = server_port(s)};
    ck_assert_ptr_null(server_create(l, &o, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "Address already in use"));
}

TEST(drain_waits_for_connected_clients)
{
    start((struct server_options){0});
    int fd = connected();
    ask(fd);
    ck_assert_int_eq(answer(fd), 1);
    server_drain(s, PATIENCE_MS * 2, on_drained, NULL);
    ck_assert(silent(fd));
    ck_assert_int_eq(drained, -1);
    close(fd);
    UNTIL(drained >= 0)
    ck_assert_int_eq(drained, 0);
}

TEST(drain_closes_remaining_clients)
{
    start((struct server_options){0});
    int fd = connected();
    ask(fd);
    ck_assert_int_eq(answer(fd), 1);
    server_drain(s, 1, on_drained, NULL);
    UNTIL(drained >= 0)
    ck_assert_int_eq(drained, 1);
    ck_assert_int_eq(answer(fd), -1);
    close(fd);
}

/* A client that has said its last still gets its answers. */
TEST(a_half_closed_client_gets_its_replies)
{
    start((struct server_options){0});
    int fd = connected();
    ask(fd);
    shutdown(fd, SHUT_WR);
    ck_assert_int_eq(answer(fd), 1);
    ck_assert_int_eq(answer(fd), -1);
    close(fd);
}
