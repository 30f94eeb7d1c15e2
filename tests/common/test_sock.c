#include "tests/support/names.h"
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/sock.h"
#include "common/strv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

TEST(a_listener_can_be_reached)
{
    struct ddp_err err = {""};
    int port = 0;
    int fd = sock_listen("127.0.0.1", 0, &port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    ck_assert_int_gt(port, 0);
    int c = sock_connect("127.0.0.1", port, now_ms() + 2000, false, &err);
    ck_assert_msg(c >= 0, "%s", err.text);
    close(c);
    close(fd);
}

TEST(a_busy_port_is_named)
{
    struct ddp_err err = {""};
    int port = 0;
    int fd = sock_listen("127.0.0.1", 0, &port, &err);
    ck_assert_int_eq(sock_listen("127.0.0.1", port, NULL, &err), -1);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "Address already in use by %s (pid %d)",
             program_invocation_short_name, (int)getpid());
    ck_assert_ptr_nonnull(strstr(err.text, wanted));
    close(fd);
}

TEST(a_refused_connection_is_retried_until_the_deadline)
{
    struct ddp_err err = {""};
    int port = 0;
    close(sock_listen("127.0.0.1", 0, &port, &err));
    int64_t start = now_ms();
    ck_assert_int_eq(sock_connect("127.0.0.1", port, start + 100, true, &err), -1);
    ck_assert_int_ge(now_ms() - start, 90);
    ck_assert_ptr_nonnull(strstr(err.text, "refused"));
}

TEST(unknown_names_are_named)
{
    struct ddp_err err = {""};
    ck_assert_int_eq(sock_connect("no.such.host.invalid", 1, now_ms() + 100, false, &err),
                     -1);
    ck_assert_ptr_nonnull(strstr(err.text, "cannot resolve 'no.such.host.invalid'"));
}

const struct test_name test_names[] = {{"two.addresses", {"127.0.0.2", "127.0.0.1"}}};
const size_t test_nnames = 1;

/* A listener whose queue is full drops what arrives, as a firewall does. */
TEST(an_address_that_drops_packets_leaves_time_for_the_next)
{
    enum { QUEUED = 3 };
    struct ddp_err err = {""};
    int port = 0, queued[QUEUED];
    int good = sock_listen("127.0.0.1", 0, &port, &err);
    int full = sock_listen("127.0.0.2", port, NULL, &err);
    ck_assert_msg(good >= 0 && full >= 0, "%s", err.text);
    ck_assert_int_eq(listen(full, 0), 0);
    for (int i = 0; i < QUEUED; i++)
        queued[i] = sock_connect("127.0.0.2", port, now_ms() + 300, false, NULL);
    int c = sock_connect("two.addresses", port, now_ms() + 2000, false, &err);
    ck_assert_msg(c >= 0, "%s", err.text);
    close(c);
    for (int i = 0; i < QUEUED; i++)
        close(queued[i]);
    ck_assert_int_lt(queued[QUEUED - 1], 0); /* it was full */
    close(good);
    close(full);
}

/* The store admits a client by them, and a name may resolve to a link-local one. */
TEST(what_others_may_see_of_us)
{
    struct strv seen = {0}, all = {0};
    if (unshare(CLONE_NEWNET) < 0 ||
        system("ip link set lo up && ip link add v0 type veth && "
               "ip link set v0 up && "
               "ip addr add 10.1.2.3/8 dev v0 && "
               "ip addr add fe80::5/64 dev v0 nodad") != 0) {
        printf("skipped: no network of its own; needs root\n");
        return;
    }
    sock_own_addrs(true, &seen);
    sock_own_addrs(false, &all);
    ck_assert(strv_has(&seen, "10.1.2.3", 8) && strv_has(&seen, "fe80::5", 7));
    ck_assert(strv_has(&all, "127.0.0.1", 9) && !strv_has(&seen, "127.0.0.1", 9));
    strv_finish(&seen);
    strv_finish(&all);
}

TEST(mapped_addresses_read_as_ipv4)
{
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    char text[64];
    inet_pton(AF_INET6, "::ffff:10.1.2.3", &sa.sin6_addr);
    sock_name((struct sockaddr *)&sa, text, sizeof text);
    ck_assert_str_eq(text, "10.1.2.3:80");
    inet_pton(AF_INET6, "fd00::1", &sa.sin6_addr);
    sock_name((struct sockaddr *)&sa, text, sizeof text);
    ck_assert_str_eq(text, "[fd00::1]:80");
}

TEST(all_bytes_arrive_or_an_error)
{
    char text[8] = "";
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    ck_assert_int_eq(sock_write_all(fds[1], "abc", 3, now_ms() + 5000), 0);
    ck_assert_int_eq(sock_write_all(fds[1], "def", 3, now_ms() + 5000), 0);
    ck_assert_int_eq(sock_read_all(fds[0], text, 6, now_ms() + 5000), 0);
    ck_assert_str_eq(text, "abcdef");
    ck_assert_int_eq(sock_read_all(fds[0], text, 1, now_ms() + 20), -1);
    ck_assert_int_eq(errno, ETIMEDOUT);
    ck_assert_int_eq(sock_write_all(fds[1], "x", 1, now_ms() + 5000), 0);
    close(fds[1]);
    ck_assert_int_eq(sock_read_all(fds[0], text, 2, now_ms() + 5000), -1);
    ck_assert_int_eq(errno, ECONNRESET);
    close(fds[0]);
}

TEST(what_is_ready_counts_after_the_deadline)
{
    char text[2] = "";
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    ck_assert_int_eq(sock_await(fds[0], POLLIN, 0), -1);
    ck_assert_int_eq(errno, ETIMEDOUT);
    ck_assert_int_eq(sock_write_all(fds[1], "a", 1, 0), 0);
    ck_assert_int_eq(sock_await(fds[0], POLLIN, 0), 0);
    ck_assert_int_eq(sock_read_all(fds[0], text, 1, 0), 0);
    ck_assert_str_eq(text, "a");
    close(fds[0]);
    close(fds[1]);
}

TEST(unread_bytes_end_at_the_deadline)
{
    static char big[1 << 22];
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    ck_assert_int_eq(sock_write_all(fds[1], big, sizeof big, now_ms() + 20), -1);
    ck_assert_int_eq(errno, ETIMEDOUT);
    close(fds[0]);
    close(fds[1]);
}

TEST(a_descriptor_passes_in_a_packet)
{
    int fds[2], pass[2];
    char byte = 0;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    ck_assert_int_eq(pipe(pass), 0);
    ck_assert_int_eq(sock_send_fds(fds[1], &pass[1], 1), 0);
    int got = sock_recv_fd(fds[0]);
    ck_assert_int_eq(write(got, "x", 1), 1);
    ck_assert_int_eq(read(pass[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'x');
    ck_assert_int_eq(send(fds[1], "x", 1, 0), 1); /* without one */
    ck_assert_int_eq(sock_recv_fd(fds[0]), -1);
    ck_assert_int_eq(errno, EBADMSG);
    struct rlimit usual, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &usual), 0);
    none = (struct rlimit){.rlim_max = usual.rlim_max};
    ck_assert_int_eq(sock_send_fds(fds[1], &pass[1], 1), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(sock_recv_fd(fds[0]), -1);
    ck_assert_int_eq(errno, EMFILE);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &usual), 0); /* a sanitizer opens files */
    close(fds[1]);
    ck_assert_int_eq(sock_recv_fd(fds[0]), -1);
    close(fds[0]);
    close(got);
    close(pass[0]);
    close(pass[1]);
}
