/* Two tables, an agent's and the launcher's: what one sends is received by the other. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/sock.h"
#include "launcher/plugins/horovod/forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NODE = 7, ID = 3, BIG = 1 << 20 };

static struct loop *loop;
static struct forward *sides[2];
static int sent[2]; /* messages */
static bool deaf;   /* the messages of side 0 are not received */
/* the processes at both ends: a rank and the server */
static int rank = -1, server = -1;

static void on_send(unsigned node, const struct msg_forward *m, void *arg)
{
    int from = arg == &sides[1];
    sent[from]++;
    if (from == 1 || !deaf)
        forward_receive(sides[1 - from], node, m);
}

static void connect_to(struct forward *f, unsigned node, uint32_t id, int *end)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    forward_add(f, node, id, ends[0]);
    *end = ends[1];
}

static void setup(void)
{
    struct ddp_err err;
    deaf = false;
    sent[0] = sent[1] = 0;
    loop = loop_create(&err);
    for (int i = 0; i < 2; i++)
        sides[i] = forward_create(loop, on_send, &sides[i]);
    connect_to(sides[0], NODE, ID, &rank);
    connect_to(sides[1], NODE, ID, &server);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++)
        forward_destroy(sides[i]);
    loop_destroy(loop);
    close(rank);
    close(server);
}

static void turn(void)
{
    for (int i = 0; i < 4; i++)
        event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
}

/* -1: nothing was received yet; 0: closed. */
static ssize_t take(int fd, char *to, size_t n)
{
    turn();
    return recv(fd, to, n, MSG_DONTWAIT);
}

FIXTURE(setup, teardown)

LOOP_TEST(both_ways_and_closed_by_either, 2)
{
    char text[64];
    ck_assert_int_eq(send(rank, "question", 8, 0), 8);
    ck_assert_int_eq(take(server, text, sizeof text), 8);
    ck_assert(memcmp(text, "question", 8) == 0);
    ck_assert_int_eq(take(rank, text, sizeof text), -1);
    ck_assert_int_eq(send(server, "answer", 6, 0), 6);
    ck_assert_int_eq(take(rank, text, sizeof text), 6);
    shutdown(_i ? rank : server, SHUT_RDWR);
    ck_assert_int_eq(take(_i ? server : rank, text, sizeof text), 0);
    int before = sent[0] + sent[1];
    turn();
    ck_assert_int_eq(sent[0] + sent[1], before); /* each has closed once */
}

/* The server answers and closes; the rank reads later. */
TEST(what_was_sent_before_the_end_arrives)
{
    static char big[BIG], got[BIG];
    size_t to = 0, from = 0;
    memset(big, 'x', sizeof big);
    while (to < BIG) {
        ssize_t n = send(server, big + to, BIG - to, MSG_DONTWAIT);
        to += n > 0 ? (size_t)n : 0;
        turn();
    }
    close(server);
    server = -1;
    turn();
    for (ssize_t n; (n = take(rank, got + from, BIG - from)) != 0;)
        from += n > 0 ? (size_t)n : 0;
    ck_assert_uint_eq(from, BIG);
    ck_assert(memcmp(got, big, BIG) == 0);
}

TEST(a_rank_that_never_ends_its_request_is_closed)
{
    static char big[64 << 10];
    size_t to = 0;
    deaf = true;
    for (;; turn()) {
        ssize_t n = send(rank, big, sizeof big, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break;
        to += n > 0 ? (size_t)n : 0;
        ck_assert_uint_lt(to, 64u << 20);
    }
    ck_assert_uint_gt(to, 8u << 20); /* the largest value of the store */
}

TEST(of_a_lost_node_only)
{
    char text[8];
    int other;
    connect_to(sides[1], NODE + 1, ID, &other);
    forward_drop(sides[1], NODE);
    ck_assert_int_eq(take(server, text, sizeof text), 0);
    ck_assert_int_eq(take(other, text, sizeof text), -1);
    ck_assert_int_eq(sent[1], 0);
    /* what comes late is of no connection */
    ck_assert_int_eq(send(rank, "late", 4, 0), 4);
    turn();
    ck_assert_int_eq(take(other, text, sizeof text), -1);
    close(other);
}
