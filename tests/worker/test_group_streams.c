/* Messages of collectives that are divided over several streams: how many streams are
 * chosen, and that the results are right whatever the sockets do. */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"
#include "worker/group/tcp.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- the choice ---- */

enum { RING = 1 << 20, MANY = 200, VERY_MANY = 3000 };

/* The time of a ring of RING bytes over n streams. */
static int64_t time_of(unsigned n, unsigned pays_up_to)
{
    return 1000000 / (n < pays_up_to ? n : pays_up_to);
}

LOOP_TEST(streams_are_doubled_as_long_as_that_pays, 6)
{
    unsigned pays_up_to = 1U << _i, most = 1;
    struct tcp_streams s = {.n = 1};
    for (int i = 0; i < MANY; i++) {
        int64_t ns = time_of(s.n, pays_up_to);
        if (i % 8 < 3)
            ns += 5000000; /* another rank was late */
        if (i % 8 == 5 || i % 16 == 6)
            ns /= 10; /* this one */
        tcp_streams_measured(&s, 3, RING, ns);
        most = s.n > most ? s.n : most;
    }
    ck_assert_uint_eq(s.n, pays_up_to < TCP_STREAMS ? pays_up_to : TCP_STREAMS);
    ck_assert_uint_eq(most, pays_up_to < TCP_STREAMS ? 2 * pays_up_to : TCP_STREAMS);
}

TEST(more_streams_are_tried_again)
{
    struct tcp_streams s = {.n = 1};
    for (int i = 0; i < VERY_MANY; i++)
        tcp_streams_measured(&s, 2, RING, time_of(s.n, i < MANY ? 1 : 4));
    ck_assert_uint_eq(s.n, 4);
}

TEST(a_short_ring_says_nothing)
{
    struct tcp_streams s = {.n = 1};
    for (int i = 0; i < MANY; i++)
        tcp_streams_measured(&s, 2, RING - 1, 1000);
    ck_assert(s.n == 1 && s.turns == 0);
}

TEST(others_use_as_many_as_their_neighbour)
{
    struct ddp_err err = {""};
    struct tcp_streams s;
    unsetenv("DDP_TCP_STREAMS");
    ck_assert(tcp_streams_init(&s, &err) == 0 && s.n == 1);
    tcp_streams_follow(&s, 4);
    ck_assert_uint_eq(s.n, 4);
    setenv("DDP_TCP_STREAMS", "3", 1);
    ck_assert(tcp_streams_init(&s, &err) == 0 && s.n == 3);
    tcp_streams_follow(&s, 4);
    ck_assert_uint_eq(s.n, 3);
    setenv("DDP_TCP_STREAMS", "17", 1);
    ck_assert_int_eq(tcp_streams_init(&s, &err), -1);
    ck_assert_str_eq(err.text, "DDP_TCP_STREAMS is '17': give a number from 1 to 16");
}

/* ---- the sockets ---- */

static unsigned long pace;         /* bytes a second of each; 0: no limit */
static bool rough;                 /* small buffers, short moves, interruptions */
static unsigned calls, used[1024]; /* calls so far; the last that sent by each fd */

static int made(int fd)
{
    if (fd >= 0 && pace)
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof pace);
    if (fd >= 0 && rough) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){65536}, sizeof(int));
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){65536}, sizeof(int));
    }
    return fd;
}

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol)
{
    return made(__real_socket(domain, type, protocol));
}

int __real_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    return made(__real_accept4(fd, addr, len, flags));
}

/* One call in 5 is interrupted; the last part of another one is cut to a few bytes. */
static bool disturb(struct msghdr *msg)
{
    calls++;
    if (rough && calls % 5 == 0) {
        errno = EINTR;
        return true;
    }
    struct iovec *last = &msg->msg_iov[msg->msg_iovlen - 1];
    size_t most = calls * 977 % 20000 + 1;
    if (rough && last->iov_len > most)
        last->iov_len = most;
    return false;
}

ssize_t __real_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags)
{
    struct iovec io[2];
    struct msghdr some = *msg;
    if (msg->msg_iovlen > 2)
        return __real_sendmsg(fd, msg, flags);
    memcpy(io, msg->msg_iov, msg->msg_iovlen * sizeof *io);
    some.msg_iov = io;
    if (disturb(&some))
        return -1;
    used[fd % 1024] = calls;
    return __real_sendmsg(fd, &some, flags);
}

ssize_t __real_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags)
{
    return disturb(msg) ? -1 : __real_recvmsg(fd, msg, flags);
}

ssize_t __real_recv(int fd, void *data, size_t size, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t size, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t size, int flags)
{
    struct iovec io = {data, size};
    struct msghdr msg = {.msg_iov = &io, .msg_iovlen = 1};
    return disturb(&msg) ? -1 : __real_recv(fd, data, io.iov_len, flags);
}

/* Descriptors that something was sent by since call `from`. */
static unsigned used_since(unsigned from)
{
    unsigned n = 0;
    for (size_t i = 0; i < ARRAY_LEN(used); i++)
        n += used[i] > from;
    return n;
}

/* ---- the results ---- */

enum { MOST = 1300021 };

static void fill(unsigned char *x, size_t n, int rank)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (unsigned char)(i * 7 + i / 251 + (size_t)rank * 31);
}

static void check(struct ddp_group *g, const char *what, const unsigned char *x,
                  size_t first, size_t n, int rank)
{
    int size = ddp_group_size(g);
    for (size_t i = 0; i < n; i++) {
        size_t at = first + i, mine = at * 7 + at / 251 + (size_t)rank * 31;
        size_t sum =
            (at * 7 + at / 251) * (size_t)size + (size_t)(size * (size - 1) / 2) * 31;
        team_assert(g, x[i] == (unsigned char)(rank < 0 ? sum : mine), "%s: byte %zu",
                    what, at);
    }
}

static void check_all(struct ddp_group *g, unsigned char *a, unsigned char *b, size_t n)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), last = size - 1;
    size_t block = n / (size_t)size;
    fill(a, n, rank);
    team_ok(g, ddp_all_reduce(g, a, n, DDP_U8, DDP_SUM, &err));
    check(g, "all_reduce", a, 0, n, -1);
    fill(a, n, rank);
    team_ok(g, ddp_reduce(g, a, b, n, DDP_U8, DDP_SUM, last, &err));
    if (rank == last)
        check(g, "reduce", b, 0, n, -1);
    team_ok(g, ddp_broadcast(g, a, n, DDP_U8, last, &err));
    check(g, "broadcast", a, 0, n, last);
    fill(a, n, rank);
    team_ok(g, ddp_all_gather(g, a, b, block, DDP_U8, &err));
    for (int r = 0; r < size; r++)
        check(g, "all_gather", b + (size_t)r * block, 0, block, r);
    team_ok(g, ddp_reduce_scatter(g, a, b, block, DDP_U8, DDP_SUM, &err));
    check(g, "reduce_scatter", b, (size_t)rank * block, block, -1);
}

/* A long message between short ones, from and to a rank of another host, while a
 * collective goes by its own streams. */
static void check_messages(struct ddp_group *g, unsigned char *a, unsigned char *b)
{
    struct ddp_err err = {""};
    enum { SHORT = 5, NMESSAGES = 3 };
    static unsigned char x[MOST];
    const size_t at[] = {0, SHORT, MOST - SHORT, MOST};
    struct ddp_request *r[2 * NMESSAGES + 1];
    int rank = ddp_group_rank(g), size = ddp_group_size(g), apart = size / 2;
    int from = (rank + size - apart) % size;
    fill(a, MOST, rank);
    memset(b, 0, MOST);
    unsigned before = calls;
    for (int i = 0; i < NMESSAGES; i++) {
        size_t n = at[i + 1] - at[i];
        r[i] = ddp_isend(g, a + at[i], n, (rank + apart) % size, i, &err);
        r[NMESSAGES + i] = ddp_irecv(g, b + at[i], n, from, i, &err);
    }
    for (int i = 0; i < 2 * NMESSAGES; i++)
        team_ok(g, ddp_wait(r[i], &err));
    unsigned streams = used_since(before);
    team_assert(g, streams >= 3, "%u streams were used by messages", streams);
    check(g, "messages", b, 0, MOST, from);

    size_t block = MOST / (size_t)size;
    fill(x, MOST, rank);
    r[0] = ddp_isend(g, a, MOST, (rank + apart) % size, 7, &err);
    r[1] = ddp_irecv(g, b, MOST, from, 7, &err);
    r[2] = ddp_iall_reduce(g, x, MOST, DDP_U8, DDP_SUM, &err);
    for (int i = 0; i < 3; i++)
        team_ok(g, ddp_wait(r[i], &err));
    check(g, "a message beside all_reduce", b, 0, MOST, from);
    check(g, "all_reduce beside a message", x, 0, MOST, -1);
    team_ok(g, ddp_all_to_all(g, a, b, block, DDP_U8, &err));
    for (int k = 0; k < size; k++)
        for (size_t i = 0; i < block; i += 1009) {
            size_t from_at = (size_t)rank * block + i;
            unsigned char want =
                (unsigned char)(from_at * 7 + from_at / 251 + (size_t)k * 31);
            team_assert(g, b[(size_t)k * block + i] == want, "all_to_all: byte %zu", i);
        }
}

static void check_results(struct ddp_group *g, const void *arg)
{
    rough = *(const bool *)arg;
    unsigned char *a = malloc(MOST), *b = malloc(MOST);
    check_all(g, a, b, 3);
    check_all(g, a, b, 200003);
    unsigned from = calls;
    check_all(g, a, b, MOST); /* a rank sends to its right neighbour only */
    unsigned streams = used_since(from);
    team_assert(g, streams >= 3, "%u streams were used", streams);
    check_messages(g, a, b);
    free(a);
    free(b);
}

static const struct team teams[] = {{.size = 2, .backend = "tcp"},
                                    {.size = 3, .backend = "tcp"},
                                    {.size = 4, .layout = "aabb"}};

LOOP_TEST(results_are_right_over_several_streams, 2 * ARRAY_LEN(teams))
{
    bool is_rough = _i % 2;
    setenv("DDP_TCP_STREAMS", "3", 1);
    assert_team(&teams[_i / 2], check_results, &is_rough);
}

/* ---- found by measurement ---- */

static void check_measured(struct ddp_group *g, const void *arg)
{
    static float x[270000];
    struct ddp_err err = {""};
    unsigned from = 0;
    pace = 3000000; /* what a busy machine adds is little beside it */
    for (int i = 0; i < 40; i++) {
        from = calls;
        team_ok(g, ddp_all_reduce(g, x, ARRAY_LEN(x), DDP_F32, DDP_MAX, &err));
    }
    unsigned streams = used_since(from);
    team_assert(g, streams >= 4, "%u streams were used", streams);
}

/* As on clouds, each flow has a part of the link. */
LOOP_TEST(streams_that_do_not_fill_the_link_are_multiplied, 2)
{
    unsetenv("DDP_TCP_STREAMS");
    assert_team(&teams[_i], check_measured, NULL);
}

/* ---- not to be had ---- */

static void check_full(struct ddp_group *g, const void *arg)
{
    static float x[300000];
    struct ddp_err err = {""};
    team_ok(g, ddp_all_reduce(g, x, ARRAY_LEN(x), DDP_F32, DDP_MAX, &err));
    team_ok(g, ddp_barrier(g, &err));
    int next = dup(0);
    struct rlimit limit = {(rlim_t)next + 1,
                           (rlim_t)next + 1}; /* the last one is taken */
    team_assert(g, setrlimit(RLIMIT_NOFILE, &limit) == 0, "%s", strerror(errno));
    for (int i = 0; i < 40; i++)
        team_ok(g, ddp_all_reduce(g, x, ARRAY_LEN(x), DDP_F32, DDP_MAX, &err));
}

TEST(want_of_descriptors_leaves_it_at_one_stream)
{
    unsetenv("DDP_TCP_STREAMS");
    assert_team(&teams[0], check_full, NULL);
}

enum { FILES = 64 };

static void check_few(struct ddp_group *g, const void *arg)
{
    static char a[5 * 300000], b[5 * 300000];
    struct ddp_err err = {""};
    struct rlimit limit = {FILES, FILES};
    team_assert(g, setrlimit(RLIMIT_NOFILE, &limit) == 0, "%s", strerror(errno));
    for (int i = 0; i < 10; i++)
        team_ok(g, ddp_all_to_all(g, a, b, 300000, DDP_U8, &err));
}

/* 4 times 16 streams would take more descriptors than there are. */
TEST(streams_leave_descriptors_to_those_of_others)
{
    setenv("DDP_TCP_STREAMS", "16", 1);
    assert_team(&(struct team){.size = 5, .backend = "tcp"}, check_few, NULL);
}
