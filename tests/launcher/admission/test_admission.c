/* Admission of real sockets: a child connects, and waits until the test releases it. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "common/sockdiag.h"
#include "launcher/admission/admission.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

union addr {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static struct ddp_err err;
static int lifeline[2]; /* children read from it: they end with the test */

static union addr address(int family, const char *text)
{
    union addr a = {.any.sa_family = (sa_family_t)family};
    void *to = family == AF_INET ? (void *)&a.in.sin_addr : (void *)&a.in6.sin6_addr;
    ck_assert_int_eq(inet_pton(family, text, to), 1);
    return a;
}

/* A listener on a free port of `text`; `*bound` gets the address. -1: the machine has
 * none. */
static int listen_on(int family, const char *text, union addr *bound)
{
    *bound = address(family, text);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0;
    if (family == AF_INET6 && fd >= 0)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    socklen_t size = sizeof *bound;
    if (fd < 0 || bind(fd, &bound->any, size) < 0 || listen(fd, 512) < 0 ||
        getsockname(fd, &bound->any, &size) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int connect_to(int family, const char *text, in_port_t port)
{
    union addr a = address(family, text);
    if (family == AF_INET)
        a.in.sin_port = port;
    else
        a.in6.sin6_port = port;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, &a.any, sizeof a), 0);
    return fd;
}

/* The two ends of the next connection, as the server's accept() gives them. */
static int take(int listener, union addr *peer, union addr *local)
{
    struct pollfd p = {.fd = listener, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 5000), 1);
    socklen_t np = sizeof *peer, nl = sizeof *local;
    int fd = accept4(listener, &peer->any, &np, SOCK_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(getsockname(fd, &local->any, &nl), 0);
    return fd;
}

/* A child that connects, `depth` forks below us. Its parents have exited, so it has
 * become our child, as it would the agent's. */
static void connect_from_child(int family, const char *text, in_port_t port, int depth)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return;
    while (depth-- > 0) {
        if (fork() > 0)
            _exit(0);
        setsid();
    }
    close(lifeline[1]);
    connect_to(family, text, port);
    char byte;
    _exit(read(lifeline[0], &byte, 1) == 0 ? 0 : 1);
}

static void setup(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    ck_assert_int_eq(pipe(lifeline), 0);
}

static const struct {
    int listen_family;
    const char *listen_addr;
    int connect_family;
    const char *connect_addr;
} families[] = {
    {AF_INET, "127.0.0.1", AF_INET, "127.0.0.1"},
    {AF_INET, "127.0.0.1", AF_INET6,
     "::ffff:127.0.0.1"}, /* as PyTorch connects to IPv4 */
    {AF_INET6, "::", AF_INET, "127.0.0.1"},
    {AF_INET6, "::", AF_INET6, "::ffff:127.0.0.1"},
    {AF_INET6, "::1", AF_INET6, "::1"},
};

static void check_family(int i, int depth)
{
    union addr at, peer, local;
    int listener = listen_on(families[i].listen_family, families[i].listen_addr, &at);
    if (listener < 0)
        return; /* no IPv6 on this machine */
    in_port_t port = at.any.sa_family == AF_INET ? at.in.sin_port : at.in6.sin6_port;
    connect_from_child(families[i].connect_family, families[i].connect_addr, port, depth);
    take(listener, &peer, &local);
    struct admission *d = admission_create(getpid());
    ck_ok(admission_check(d, &peer.any, &local.any, &err), err);
    ck_ok(admission_check(d, &peer.any, &local.any, &err), err); /* from the cache */
    admission_destroy(d);

    struct sock_owner by_netlink, by_tables;
    int netlink = sockdiag_open();
    ck_ok(sockdiag_find(netlink, &peer.any, &local.any, &by_netlink, &err), err);
    ck_ok(sockdiag_find(-1, &peer.any, &local.any, &by_tables, &err), err);
    ck_assert_uint_eq(by_netlink.inode, by_tables.inode);
    ck_assert_uint_eq(by_netlink.uid, by_tables.uid);
    ck_assert_uint_eq(by_netlink.uid, geteuid());
    close(netlink);
}

FIXTURE(setup, NULL)

LOOP_TEST(a_child_belongs_with_any_address_family, ARRAY_LEN(families))
{
    check_family(_i, 0);
}

LOOP_TEST(an_orphaned_grandchild_belongs, ARRAY_LEN(families))
{
    check_family(_i, 2);
}

TEST(another_process_of_the_user_does_not_belong)
{
    union addr at, peer, local;
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    pid_t agent = fork();
    if (agent == 0) {
        pause();
        _exit(0);
    }
    int fd = connect_to(AF_INET, "127.0.0.1", at.in.sin_port);
    take(listener, &peer, &local);
    struct admission *d = admission_create(agent);
    ck_assert_int_eq(admission_check(d, &peer.any, &local.any, &err), -1);
    ck_assert_str_eq(err.text, "no process of this job holds its socket");
    admission_destroy(d);
    close(fd);
    kill(agent, SIGKILL);
}

TEST(closed_and_unknown_connections_are_rejected)
{
    union addr at, peer, local;
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    close(connect_to(AF_INET, "127.0.0.1", at.in.sin_port));
    take(listener, &peer, &local);
    struct admission *d = admission_create(getpid());
    ck_assert_int_eq(admission_check(d, &peer.any, &local.any, &err), -1);
    peer.in.sin_port = htons(1);
    ck_assert_int_eq(admission_check(d, &peer.any, &local.any, &err),
                     ADMISSION_ELSEWHERE);
    ck_assert_ptr_nonnull(strstr(err.text, "no connection from 127.0.0.1:1 to "));
    struct sock_owner owner;
    ck_assert_int_eq(sockdiag_find(-1, &peer.any, &local.any, &owner, &err), -1);
    ck_assert_int_eq(errno, ENOENT);
    admission_destroy(d);
}

/* Without descriptors nothing can be read: the connection may be there. */
TEST(a_connection_that_cannot_be_looked_for_is_not_elsewhere)
{
    union addr at, peer, local;
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    int fd = connect_to(AF_INET, "127.0.0.1", at.in.sin_port);
    take(listener, &peer, &local);
    struct admission *d = admission_create(getpid());
    struct rlimit before;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, before.rlim_max}), 0);
    struct sock_owner owner;
    ck_assert_int_eq(sockdiag_find(-1, &peer.any, &local.any, &owner, &err), -1);
    ck_assert_int_eq(errno, EMFILE);
    ck_assert_int_eq(admission_check(d, &peer.any, &local.any, &err), -1);
    setrlimit(RLIMIT_NOFILE, &before);
    ck_assert_ptr_nonnull(
        strstr(err.text, "cannot read the kernel's list of connections"));
    admission_destroy(d);
    close(fd);
}

static bool serves_tcp(struct nlmsghdr *head, int error)
{
    int pair[2];
    struct {
        struct nlmsghdr head;
        int error;
    } reply = {*head, error};
    reply.head.nlmsg_len = sizeof reply;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
    ck_assert_int_eq(send(pair[1], &reply, sizeof reply, 0), sizeof reply);
    bool yes = sockdiag_serves_tcp(pair[0]);
    close(pair[0]);
    close(pair[1]);
    return yes;
}

/* As the kernel replies without tcp_diag, and without inet_diag. */
TEST(a_kernel_without_the_module_is_noticed)
{
    struct nlmsghdr done = {.nlmsg_type = NLMSG_DONE}, bad = {.nlmsg_type = NLMSG_ERROR};
    ck_assert(serves_tcp(&done, 0));
    ck_assert(!serves_tcp(&done, -ENOENT));
    ck_assert(!serves_tcp(&bad, -ENOENT));
    int netlink = sockdiag_open();
    ck_assert_int_ge(netlink, 0);
    close(netlink);
}

TEST(an_accepted_connection_is_checked_by_its_descriptor)
{
    struct admission *d = admission_create(getpid());
    union addr at, peer, local;
    pid_t holder = 0;
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    connect_from_child(AF_INET, "127.0.0.1", at.in.sin_port, 0);
    int fd = take(listener, &peer, &local);
    ck_ok(admission_accepted(d, fd, &peer.any, &holder, &err), err);
    ck_assert(holder > 0 && holder != getpid());
    close(fd);
    ck_assert_int_eq(admission_accepted(d, fd, &peer.any, NULL, &err), -1);
    ck_assert_str_eq(err.text, "its local address cannot be read: Bad file descriptor");
    admission_destroy(d);
}

/* connect() alone may choose a port that other connections use, and a second bind() to it
 * would fail. */
static int connect_from(const union addr *from, const union addr *to)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ck_assert_int_eq(bind(fd, &from->any, sizeof *from), 0);
    ck_assert_int_eq(connect(fd, &to->any, sizeof *to), 0);
    return fd;
}

static void child_connects_from(const union addr *from, const union addr *to)
{
    if (fork() > 0)
        return;
    close(lifeline[1]);
    connect_from(from, to);
    char byte;
    _exit(read(lifeline[0], &byte, 1) == 0 ? 0 : 1);
}

/* A stranger connects and resets the connection, and the kernel gives the port to a rank:
 * the rank must not vouch for the stranger's connection. */
TEST(a_reset_connection_is_not_the_next_one_of_its_port)
{
    struct admission *d = admission_create(getpid());
    union addr at, peer, local, next, any = address(AF_INET, "127.0.0.1");
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    int fd = connect_from(&any, &at);
    int early = take(listener, &peer, &local);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(fd);
    child_connects_from(&peer, &at);
    int late = take(listener, &next, &local);
    ck_assert_int_eq(next.in.sin_port, peer.in.sin_port);
    ck_assert_int_eq(admission_accepted(d, early, &peer.any, NULL, &err), -1);
    ck_assert_str_eq(err.text, "its socket has been closed already");
    ck_ok(admission_accepted(d, late, &next.any, NULL, &err), err);
    admission_destroy(d);
    close(early);
    close(late);
}

/* A full queue drops the SYN, so no accepted connection has this end. */
TEST(a_connection_that_is_not_established_does_not_count)
{
    union addr at, peer = {0};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fds[8];
    socklen_t size = sizeof at;
    at = address(AF_INET, "127.0.0.1");
    ck_assert_int_eq(bind(listener, &at.any, size), 0);
    ck_assert_int_eq(listen(listener, 0), 0);
    ck_assert_int_eq(getsockname(listener, &at.any, &size), 0);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(fds[i], &at.any, sizeof at);
    }
    size = sizeof peer;
    ck_assert_int_eq(getsockname(fds[ARRAY_LEN(fds) - 1], &peer.any, &size), 0);
    struct admission *d = admission_create(getpid());
    ck_assert_int_eq(admission_check(d, &peer.any, &at.any, &err), ADMISSION_ELSEWHERE);
    admission_destroy(d);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
    close(listener);
}

/* The kernel returns the listener of that port instead, which is not the client. */
TEST(a_listener_is_not_a_connection)
{
    union addr at, elsewhere = address(AF_INET, "127.0.0.1");
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    ck_assert_int_ge(listener, 0);
    elsewhere.in.sin_port = htons(9);
    struct admission *d = admission_create(getpid());
    ck_assert_int_eq(admission_check(d, &at.any, &elsewhere.any, &err),
                     ADMISSION_ELSEWHERE);
    admission_destroy(d);
}

TEST(a_descriptor_passed_on_counts_for_its_holder)
{
    union addr at, peer, local;
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    int fd = connect_to(AF_INET, "127.0.0.1", at.in.sin_port);
    take(listener, &peer, &local);
    struct admission *d = admission_create(getpid());
    ck_ok(admission_check(d, &peer.any, &local.any, &err), err);
    int moved = dup(fd); /* the cache is stale now */
    close(fd);
    ck_ok(admission_check(d, &peer.any, &local.any, &err), err);
    close(moved);
    ck_assert_int_eq(admission_check(d, &peer.any, &local.any, &err), -1);
    admission_destroy(d);
}

/* --- processes that have changed user, namespaces or visibility --------------------- */

enum { OTHER_USER = 65534 };

static void be_another_user(void)
{
    if (setresuid(OTHER_USER, OTHER_USER, OTHER_USER) < 0)
        _exit(1);
}

static void hide(void)
{
    prctl(PR_SET_DUMPABLE, 0);
}

static void leave_namespaces(void)
{
    int flags = CLONE_NEWPID | CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
    if (unshare(flags) < 0)
        _exit(1);
    if (fork() > 0)
        pause(); /* the first process of a pid namespace is its child */
}

static void change_nothing(void) {}

/* The result of admission for a process that connects after `change`. It is our child or
 * an unrelated process; then one of our children has made the change `other`, too. */
static int answer_to(void (*change)(void), bool ours, void (*other)(void))
{
    union addr at, peer, local;
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    int ready[2];
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t agent = ours ? getpid() : fork();
    if (agent == 0) {
        if (fork() == 0) {
            other();
            if (write(ready[1], "", 1) != 1)
                _exit(1);
        }
        pause();
    }
    if (!ours)
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    pid_t pid = fork();
    if (pid == 0) {
        change();
        connect_to(AF_INET, "127.0.0.1", at.in.sin_port);
        pause();
    }
    take(listener, &peer, &local);
    struct admission *d = admission_create(agent);
    int answer = admission_check(d, &peer.any, &local.any, &err);
    if (answer != admission_check(d, &peer.any, &local.any, &err))
        answer = -9;
    admission_destroy(d);
    kill(pid, SIGKILL);
    if (!ours)
        kill(agent, SIGKILL);
    return answer;
}

TEST(descent_decides_with_another_user)
{
    if (geteuid() != 0)
        return;
    ck_assert_int_eq(answer_to(be_another_user, true, change_nothing), 0);
    ck_assert_int_eq(answer_to(be_another_user, false, change_nothing), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "belongs to user 65534"));
}

TEST(descent_decides_in_other_namespaces)
{
    if (geteuid() == 0) {
        ck_assert_int_eq(answer_to(leave_namespaces, true, change_nothing), 0);
        be_another_user();
    }
    prctl(PR_SET_DUMPABLE, 1);
    int probe = fork();
    if (probe == 0)
        _exit(unshare(CLONE_NEWUSER) < 0);
    int status;
    waitpid(probe, &status, 0);
    if (status == 0) /* ordinary users may have some */
        ck_assert_int_eq(answer_to(leave_namespaces, true, change_nothing), 0);
}

static int to_helper[2], from_helper[2];

/* As a rootless container does it: another id of this user's, by a helper that may. */
static void be_mapped(void)
{
    char byte;
    pid_t self = getpid();
    if (unshare(CLONE_NEWUSER) < 0 || write(to_helper[1], &self, sizeof self) < 0 ||
        read(from_helper[0], &byte, 1) != 1 || setresuid(1, 1, 1) < 0)
        _exit(1);
}

static void be_the_helper(void)
{
    pid_t pid;
    while (read(to_helper[0], &pid, sizeof pid) == sizeof pid) {
        char path[64], map[64];
        snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
        FILE *f = fopen(path, "w");
        snprintf(map, sizeof map, "0 %d 1\n1 100000 1000\n", OTHER_USER);
        if (!f || fputs(map, f) < 0 || fclose(f) != 0 ||
            write(from_helper[1], "", 1) != 1)
            _exit(1);
    }
    _exit(0);
}

TEST(an_id_that_is_mapped_to_one_of_the_users_belongs)
{
    if (geteuid() != 0)
        return;
    ck_assert_int_eq(pipe(to_helper) + pipe(from_helper), 0);
    if (fork() == 0)
        be_the_helper();
    be_another_user();
    prctl(PR_SET_DUMPABLE, 1);
    int probe = fork(), status;
    if (probe == 0)
        _exit(unshare(CLONE_NEWUSER) < 0);
    waitpid(probe, &status, 0);
    if (status != 0)
        return; /* ordinary users may have no namespaces */
    ck_assert_int_eq(answer_to(be_mapped, true, change_nothing), 0);
    ck_assert_int_eq(answer_to(be_mapped, false, change_nothing), -1);
}

TEST(hidden_descriptors_belong_without_other_candidates)
{
    if (geteuid() == 0) {
        be_another_user();
        prctl(PR_SET_DUMPABLE, 1); /* as if started so */
    }
    ck_assert_int_eq(answer_to(hide, true, change_nothing), 0);
    ck_assert_int_eq(answer_to(hide, false, change_nothing), -1);
    ck_assert_int_eq(answer_to(change_nothing, false, hide), -1);
}

TEST(many_children_one_after_the_other)
{
    union addr at, peer, local;
    int listener = listen_on(AF_INET, "127.0.0.1", &at);
    struct admission *d = admission_create(getpid());
    for (int i = 0; i < 64; i++) {
        connect_from_child(AF_INET, "127.0.0.1", at.in.sin_port, 0);
        take(listener, &peer, &local);
        ck_ok(admission_check(d, &peer.any, &local.any, &err), err);
    }
    admission_destroy(d);
}
