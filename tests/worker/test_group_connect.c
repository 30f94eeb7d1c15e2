/* Connections that are slow to come about: ranks whose queue of connections has room for
 * two, so that the kernel drops the SYNs of the others until it accepts. */
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/duration.h"
#include "worker/group/group.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static pid_t tester;

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);

/* Strangers have filled this rank's queues for its host before a rank can connect. */
static bool crowded;

static void fill_queue(int listener)
{
    struct sockaddr_un sa;
    socklen_t size = sizeof sa;
    if (getsockname(listener, (struct sockaddr *)&sa, &size) < 0 ||
        sa.sun_family != AF_UNIX)
        return;
    for (int rc = 0; rc == 0;) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        rc = connect(fd, (struct sockaddr *)&sa, size);
        close(fd);
    }
}

int __wrap_listen(int fd, int backlog)
{
    int rc = __real_listen(fd, getpid() == tester ? backlog : 1);
    if (crowded)
        fill_queue(fd);
    return rc;
}

/* Until then the kernel of a rank has no acknowledgement for what the rank has sent. */
static int64_t unacked_until_ms;

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);

int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list ap;
    va_start(ap, request);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    int rc = __real_ioctl(fd, request, arg);
    if (request == SIOCOUTQ && now_ms() < unacked_until_ms)
        *(int *)arg = 1;
    return rc;
}

/* The SYNs that are sent after 0, 1 and 3 seconds are lost, the one after 7 is not. */
enum { COMPUTES_MS = 5500 };

static _Atomic int *computed; /* has rank 0? Shared by the ranks */

/* All send to rank 0, which computes; ranks 1 and 2 have something else to do. */
static void check_incast(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), word = rank, came = -1;
    if (rank == 0) {
        poll(NULL, 0, COMPUTES_MS);
        *computed = 1;
        for (int r = 1; r < size; r++) {
            team_ok(g, ddp_recv(g, &came, sizeof came, r, 0, &err));
            team_assert(g, came == r, "%d from rank %d", came, r);
        }
        team_ok(g, ddp_barrier(g, &err));
        return;
    }
    struct ddp_request *out = ddp_isend(g, &word, sizeof word, 0, 0, &err);
    team_assert(g, out, "%s", err.text);
    if (rank <= 2) {
        if (rank == 1)
            team_ok(g, ddp_send(g, &word, sizeof word, 2, 1, &err));
        else
            team_ok(g, ddp_recv(g, &came, sizeof came, 1, 1, &err));
        team_assert(g, !*computed, "a message waited for a connection to rank 0");
    }
    team_ok(g, ddp_wait(out, &err));
    team_ok(g, ddp_barrier(g, &err)); /* one that ends has its connections taken back */
}

TEST(lost_syns_are_waited_out)
{
    tester = getpid();
    computed = team_shared(sizeof *computed);
    assert_team(&(struct team){.size = 6, .layout = "abcdef"}, check_incast, NULL);
}

static _Atomic int *gave_up; /* has rank 1? Shared by the ranks */

/* Rank 0 has a child when its connection is not complete, which outlives it and shall not
 * hide its end. */
static void check_orphan(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int word = 7;
    if (ddp_group_rank(g) == 0) {
        unacked_until_ms = now_ms() + 300;
        struct ddp_request *out = ddp_isend(g, &word, sizeof word, 1, 0, &err);
        team_assert(g, out, "%s", err.text);
        if (fork() == 0) {
            for (int i = 0; i < 4000 && !*gave_up; i++)
                poll(NULL, 0, 5);
            _exit(0);
        }
        team_ok(g, ddp_wait(out, &err));
        team_ok(g, ddp_recv(g, &word, sizeof word, 1, 0, &err));
        raise(SIGKILL);
    }
    team_ok(g, ddp_recv(g, &word, sizeof word, 0, 0, &err));
    team_ok(g, ddp_send(g, &word, sizeof word, 0, 0, &err));
    struct team_watch began = team_watch();
    bool dead = ddp_recv(g, &word, sizeof word, 0, 0, &err) < 0,
         soon = team_is_soon(began);
    *gave_up = 1;
    team_assert(g, dead && soon && strstr(err.text, "rank 0 on"), "%s", err.text);
}

TEST(a_child_does_not_keep_a_connection_that_was_being_made)
{
    gave_up = team_shared(sizeof *gave_up);
    assert_team(&(struct team){.size = 2, .layout = "ab", .expect_dead = 1 + 0},
                check_orphan, NULL);
}

/* Two ranks connect to each other at the same time, and acknowledgements are late: each
 * accepts the other's connection while its own waits. */
static void check_crossing(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int other = 1 - ddp_group_rank(g), word = 7, came = -1;
    unacked_until_ms = now_ms() + 300;
    struct ddp_request *out = ddp_isend(g, &word, sizeof word, other, 0, &err);
    team_assert(g, out, "%s", err.text);
    team_ok(g, ddp_recv(g, &came, sizeof came, other, 0, &err));
    team_assert(g, came == word, "%d", came);
    team_ok(g, ddp_wait(out, &err));
    team_ok(g, ddp_barrier(g, &err));
}

TEST(connections_that_cross_are_both_kept)
{
    assert_team(&(struct team){.size = 2, .layout = "ab"}, check_crossing, NULL);
}

/* The kernel of a rank has had no acknowledgement for long. */
static bool silent;

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size);

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    int rc = __real_getsockopt(fd, level, name, value, size);
    if (silent && level == IPPROTO_TCP && name == TCP_INFO) {
        ((struct tcp_info *)value)->tcpi_retransmits = 7;
        ((struct tcp_info *)value)->tcpi_rto = 25600000;
    }
    return rc;
}

/* Times of seconds are a fraction of one here. */
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    const unsigned short_ms = 200;
    if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT)
        value = &short_ms;
    return __real_setsockopt(fd, level, name, value, size);
}

/* A rank that computes has no room for what is sent to it, and lives; a host that
 * acknowledges nothing does not. */
static void check_silence(struct ddp_group *g, const void *arg)
{
    enum { BYTES = 16 << 20, AWAY_MS = 2000 };
    struct ddp_err err = {""};
    char *data = calloc(1, BYTES);
    int rank = ddp_group_rank(g);
    if (rank == 0)
        poll(NULL, 0, AWAY_MS);
    team_ok(g, ddp_broadcast(g, data, BYTES, DDP_U8, 1, &err));
    silent = rank == 1; /* rank 0 makes no call */
    if (rank == 0)
        poll(NULL, 0, AWAY_MS);
    else
        team_assert(g, ddp_barrier(g, &err) == -1 && strstr(err.text, "not answer"), "%s",
                    err.text);
    free(data);
}

TEST(a_rank_without_room_lives)
{
    tester = getpid();
    assert_team(&(struct team){.size = 2, .layout = "ab"}, check_silence, NULL);
}

/* How a rank joins the others of its host: it dies before the leader has called it, or
 * then, or when it has mapped the memory and not said so; or it ends because it finds out
 * then that the parent is broken; or it is late. */
static enum { LIVES, DIES_WAITING, DIES_CALLED, DIES_MAPPING, GIVES_UP, LATE } joining;
static struct ddp_group *parent;

/* A rank on a slow path is asked whether it lives, and a signal comes. */
static bool interrupts;

int __real_poll(struct pollfd *fds, nfds_t n, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms);

int __wrap_poll(struct pollfd *fds, nfds_t n, int ms)
{
    if (joining == DIES_WAITING)
        raise(SIGKILL);
    if (!interrupts)
        return __real_poll(fds, n, ms);
    interrupts = false;
    errno = EINTR;
    return -1;
}

static void check_signal(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    interrupts = true;
    team_assert(g, tcp_answers(g->tcp, 1 - ddp_group_rank(g)) == TCP_ANSWERS,
                "a signal is a refusal");
    team_assert(g, !interrupts, "no poll()");
    team_ok(g, ddp_barrier(g, &err));
}

TEST(a_signal_is_no_refusal)
{
    assert_team(&(struct team){.size = 2, .layout = "ab"}, check_signal, NULL);
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);

int __wrap_memfd_create(const char *name, unsigned flags)
{
    __real_poll(NULL, 0, 300);
    return __real_memfd_create(name, flags);
}

int __real_accept4(int fd, struct sockaddr *sa, socklen_t *size, int flags);
int __wrap_accept4(int fd, struct sockaddr *sa, socklen_t *size, int flags);

int __wrap_accept4(int fd, struct sockaddr *sa, socklen_t *size, int flags)
{
    if (joining == DIES_CALLED)
        raise(SIGKILL);
    if (joining == GIVES_UP)
        _exit(ddp_recv(parent, &(char){0}, 1, 2, 0, NULL) == 0);
    __real_poll(NULL, 0, joining == LATE ? 1000 : 0);
    return __real_accept4(fd, sa, size, flags);
}

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (joining == DIES_MAPPING)
        raise(SIGKILL);
    return __real_madvise(at, bytes, advice);
}

/* Rank 0 gives up because of rank 1, while rank 2 has not come. */
static void check_joining(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), all[] = {0, 1, 2};
    joining = rank == 1 ? *(const int *)arg : rank == 2 ? LATE : LIVES;
    struct ddp_group *sub = ddp_group_sub(g, all, 3, &err);
    team_assert(g, !sub && strstr(err.text, ": rank 1 on "), "%s", err.text);
}

LOOP_TEST(who_has_gone_while_joining_is_named_to_all, 3)
{
    int how = DIES_WAITING + _i;
    assert_team(&(struct team){.size = 3, .expect_dead = 1 + 1}, check_joining, &how);
}

/* The leader is stopped for longer than its deadline while it waits for others, which are
 * stopped, too, and come half a second later; or they are while they wait for it. */
static void check_stopped(struct ddp_group *g, const void *arg)
{
    enum { LIMIT_MS = 3000, STOPPED_MS = 4000, LATE_MS = 500 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), all[] = {0, 1, 2};
    bool leaders = *(const bool *)arg, mine = leaders == (rank == 0);
    team_ok(g, ddp_barrier(g, &err));
    ddp_group_set_timeout(g, mine ? LIMIT_MS : 60000);
    joining = rank > 0 && leaders ? LATE : LIVES;
    if (mine || leaders)
        team_stop(leaders ? 600 : 150, STOPPED_MS + (mine ? 0 : LATE_MS));
    struct ddp_group *sub = ddp_group_sub(g, all, 3, &err);
    team_assert(g, sub, "%s", err.text);
    ddp_group_destroy(sub);
}

LOOP_TEST(a_stop_while_joining_is_no_part_of_the_deadline, 2)
{
    bool leaders = _i;
    assert_team(&(struct team){.size = 3}, check_stopped, &leaders);
}

/* Rank 2 is dead, which ends rank 1 while rank 0 makes a group with it. */
static void check_first_cause(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), both[] = {0, 1};
    if (rank == 2)
        raise(SIGKILL);
    joining = rank == 1 ? GIVES_UP : LIVES;
    parent = g;
    struct ddp_group *sub = ddp_group_sub(g, both, 2, &err);
    team_assert(g, !sub && strncmp(err.text, "rank 2 on ", 10) == 0, "%s", err.text);
}

LOOP_TEST(who_ends_because_of_a_dead_rank_is_not_blamed, 2)
{
    assert_team(
        &(struct team){.size = 3, .layout = _i ? "aab" : "aaa", .expect_dead = 1 + 2},
        check_first_cause, NULL);
}

/* Rank 1 accepts the first of them when rank 0 has tried to connect. */
static void check_crowd(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int all[] = {0, 1};
    crowded = ddp_group_rank(g) == 1;
    joining = crowded ? LATE : LIVES;
    struct ddp_group *sub = ddp_group_sub(g, all, 2, &err);
    team_assert(g, sub, "%s", err.text);
    team_ok(g, ddp_barrier(sub, &err));
    ddp_group_destroy(sub);
}

TEST(strangers_in_a_queue_are_waited_out)
{
    assert_team(&(struct team){.size = 2}, check_crowd, NULL);
}
