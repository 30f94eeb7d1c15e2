/* The listener for agents: unauthenticated connections, and no free descriptor. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/sock.h"
#include "launcher/link/handshake.h"
#include "launcher/transport/accept.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CALLS = 8 };

static struct loop *loop;
static int port, joined;

static bool never(unsigned node, int fd, const struct link_keys *keys, const char *here,
                  void *arg)
{
    return false;
}

/* Every descriptor up to the limit; returns how many were made. */
static int take_all(int *taken, int most)
{
    int n = 0;
    while (n < most && (taken[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    ck_assert_int_eq(errno, EMFILE);
    return n;
}

TEST(without_descriptors_connections_wait_and_the_loop_sleeps)
{
    enum { LIMIT = 64, TURNS = 3 };
    struct ddp_err err;
    struct loop *l = loop_create(&err);
    struct secret key = {{1}};
    struct strv calls = {0};
    unsigned char offer[HANDSHAKE_OFFER];
    int taken[LIMIT], callers[CALLS];
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}), 0);
    const struct acceptor_options options = {.expected = CALLS};
    struct acceptor *a = acceptor_create(l, &key, &options, never, NULL, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    acceptor_addresses(a, &calls);
    ck_assert_int_eq(sscanf(calls.v[calls.n - 1], "127.0.0.1 %d", &port), 1);
    for (int i = 0; i < CALLS; i++) {
        callers[i] = sock_connect("127.0.0.1", port, now_ms() + 20000, false, &err);
        ck_assert_msg(callers[i] >= 0, "%s", err.text);
    }
    int n = take_all(taken, LIMIT);

    /* each turn but the first is a pause; without one they would be microseconds */
    int64_t began = now_ms();
    for (int i = 0; i < TURNS; i++)
        event_base_loop(loop_base(l), EVLOOP_ONCE);
    ck_assert_int_ge(now_ms() - began, 150);

    for (int i = 0; i < n; i++)
        close(taken[i]);
    for (int i = 0; i < CALLS; i++) { /* then all are accepted */
        size_t have = 0;
        for (int64_t deadline = now_ms() + 50000; have < sizeof offer;) {
            ssize_t got =
                recv(callers[i], offer + have, sizeof offer - have, MSG_DONTWAIT);
            have += got > 0 ? (size_t)got : 0;
            ck_assert_int_lt(now_ms(), deadline);
            if (got <= 0)
                event_base_loop(loop_base(l), EVLOOP_ONCE);
        }
        close(callers[i]);
    }
    acceptor_destroy(a);
    strv_finish(&calls);
    loop_destroy(l);
}

/* --- unauthenticated connections ---------------------------------------------------- */

static bool join(unsigned node, int fd, const struct link_keys *keys, const char *here,
                 void *arg)
{
    joined++;
    close(fd);
    return true;
}

static struct acceptor *acceptor_start(const struct acceptor_options *options,
                                       struct secret *key)
{
    struct ddp_err err;
    struct strv calls = {0};
    loop = loop_create(&err);
    ck_ok(secret_make(key, &err), err);
    struct acceptor *a = acceptor_create(loop, key, options, join, NULL, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    acceptor_addresses(a, &calls);
    ck_assert_int_eq(sscanf(calls.v[calls.n - 1], "127.0.0.1 %d", &port), 1);
    strv_finish(&calls);
    return a;
}

static int call_from(const char *addr)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, addr, &sa.sin_addr);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    inet_pton(AF_INET, "127.0.0.1", &sa.sin_addr);
    sa.sin_port = htons((uint16_t)port);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
    return fd;
}

/* A flood must leave time for other events. */
TEST(an_iteration_accepts_a_limited_number)
{
    enum { FLOOD = 200 };
    struct secret key;
    struct ddp_err err;
    int fds[FLOOD], offered = 0;
    char byte;
    struct acceptor *a = acceptor_start(&(struct acceptor_options){0}, &key);
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = sock_connect("127.0.0.1", port, now_ms() + 20000, false, &err);
        ck_assert_msg(fds[i] >= 0, "%s", err.text);
    }
    event_base_loop(loop_base(loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    for (int i = 0; i < FLOOD; i++) {
        offered += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 1;
        close(fds[i]);
    }
    ck_assert_int_gt(offered, 0);
    ck_assert_int_lt(offered, FLOOD);
    acceptor_destroy(a);
    loop_destroy(loop);
}

static bool closed(int fd)
{
    unsigned char byte[HANDSHAKE_OFFER];
    ssize_t n;
    while ((n = recv(fd, byte, sizeof byte, MSG_DONTWAIT)) > 0)
        ;
    return n == 0 || errno != EAGAIN;
}

/* One correct byte of an answer at a time does not extend the time limit: that has passed
 * long before PIECES bytes, which are no whole answer. */
TEST(a_trickle_does_not_renew_the_deadline)
{
    struct secret key;
    struct acceptor *a =
        acceptor_start(&(struct acceptor_options){.prove_ms = 150}, &key);
    enum { PIECES = 70, PIECE_US = 20000 };
    int64_t began = now_ms();
    int fd = call_from("127.0.0.1"), sent = 0;
    while (!closed(fd) && sent < PIECES && send(fd, "D", 1, MSG_NOSIGNAL) == 1) {
        sent++;
        usleep(PIECE_US);
        event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
    }
    ck_assert_int_lt(sent, PIECES);
    ck_assert_int_ge(now_ms() - began, 150);
    close(fd);
    acceptor_destroy(a);
    loop_destroy(loop);
}

static void prove(int fd, const struct secret *key, unsigned node)
{
    unsigned char offer[HANDSHAKE_OFFER], answer[HANDSHAKE_ANSWER];
    struct handshake h;
    struct secret own;
    struct ddp_err err;
    ck_assert_int_eq(recv(fd, offer, sizeof offer, MSG_WAITALL), sizeof offer);
    handshake_node_key(key, node, &own);
    ck_ok(handshake_answer(&h, &own, node, offer, answer, &err), err);
    ck_assert_int_eq(send(fd, answer, sizeof answer, 0), sizeof answer);
    event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
}

/* An agent that announced itself through ssh and then got through by TCP. */
TEST(our_own_child_that_proves_nothing_is_no_stranger)
{
    struct secret key;
    struct acceptor *a = acceptor_start(&(struct acceptor_options){.prove_ms = 20}, &key);
    char *log = temp_file("log", "");
    int pair[2], file = open(log, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    ck_assert_int_ge(dup2(file, STDERR_FILENO), 0);
    acceptor_add(a, pair[0]);
    for (int64_t end = now_ms() + 20000; !closed(pair[1]) && now_ms() < end;)
        event_base_loop(loop_base(loop), EVLOOP_ONCE);
    ck_assert(closed(pair[1]));
    ck_assert_int_eq((int)lseek(file, 0, SEEK_END), 0);
    close(pair[1]);
    close(file);
    acceptor_destroy(a);
    loop_destroy(loop);
    free(log);
}

/* Waiting agents stay, and a new one is accepted. */
TEST(unauthenticated_connections_do_not_exclude_agents)
{
    enum { AGENTS = 4, STRANGERS = 400 };
    struct secret key;
    struct acceptor *a = acceptor_start(&(struct acceptor_options){0}, &key);
    int agents[AGENTS], strangers[STRANGERS];
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 1024}), 0);
    agents[0] = call_from("127.0.0.1");
    agents[1] = call_from("127.0.0.3");
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = call_from("127.0.0.2");
    agents[2] = call_from("127.0.0.1");
    agents[3] = call_from("127.0.0.4");
    for (unsigned i = 0; i < AGENTS; i++)
        prove(agents[i], &key, i);
    ck_assert_int_eq(joined, AGENTS);
    ck_assert(closed(strangers[0]));
    ck_assert(!closed(strangers[STRANGERS - 1]));
    acceptor_destroy(a);
    loop_destroy(loop);
}
