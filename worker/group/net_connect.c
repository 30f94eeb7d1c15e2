/* worker/group/net_connect.c - connections to ranks of other hosts
 *
 * Nothing waits here. A connection that is not there at once is looked at each time
 * somebody wants to send by it, for as long as the group waits: the kernel sends a lost
 * SYN again after 1, 3, 7, ... seconds, and what fails for a reason that may pass is
 * begun anew. Only "connection refused" means that the rank has gone, since each listens
 * from before the others know its address until it ends.
 *
 * A connection is used when its hello has been acknowledged. Before, it may be one that
 * only this side knows of: a kernel whose queue is full answers SYNs by cookies, drops
 * what follows, and resets a connection of which it sees a later segment first.
 */
#include "worker/group/net_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PAUSE_MS = 50, /* between attempts; doubled up to: */
    PAUSE_MAX_MS = 1000,
    SILENCE_MS = 20000, /* of an unacknowledged byte: the host is down */
    NEAR_US = 200       /* there and back on the network of one cluster */
};

int net_start_connect(const struct member *m)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST},
                    *list;
    char port[16];
    snprintf(port, sizeof port, "%d", m->port);
    if (getaddrinfo(m->addr, port, &hints, &list) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) < 0 &&
        errno != EINPROGRESS) {
        int why = errno;
        close(fd);
        errno = why;
        fd = -1;
    }
    int saved = errno;
    freeaddrinfo(list);
    errno = saved;
    return fd;
}

/* A system-wide choice of BBR is for long ways: it paces what it sends by timers, which
 * over a short one, where a packet is there before the timer rings, costs two thirds of
 * the speed and three times the CPU. Reno is always there and always permitted. */
static void hurry_when_near(int fd)
{
    static const char reno[] = "reno";
    struct tcp_info info;
    socklen_t size = sizeof info;
    char now[16] = "";
    socklen_t len = sizeof now - 1;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
        info.tcpi_rtt < NEAR_US &&
        getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &len) == 0 &&
        strncmp(now, "bbr", 3) == 0)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof reno - 1);
}

void net_prepare_to_send(int fd)
{
    hurry_when_near(fd);
    sock_set_keepalive(fd, 5, 2, 5);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(unsigned){SILENCE_MS},
               sizeof(unsigned));
}

/* ---- streams that are being connected ---- */

static struct connecting **find(struct net *n, int rank, enum net_channel ch)
{
    struct connecting **at = &n->connecting;
    while (*at && ((*at)->rank != rank || (*at)->ch != ch))
        at = &(*at)->next;
    return at;
}

bool net_is_connecting(const struct net *n, int rank, enum net_channel ch)
{
    const struct connecting *c = n->connecting;
    while (c && (c->rank != rank || c->ch != ch))
        c = c->next;
    return c != NULL;
}

static void forget(struct connecting **at)
{
    struct connecting *c = *at;
    *at = c->next;
    if (c->fd >= 0)
        close(c->fd);
    free(c);
}

void net_forget_connecting(struct net *n, int rank, enum net_channel ch)
{
    struct connecting **at = find(n, rank, ch);
    if (*at)
        forget(at);
}

void net_forget_all_connecting(struct net *n)
{
    while (n->connecting)
        forget(&n->connecting);
}

static bool may_pass(int why)
{
    static const int reasons[] = {ETIMEDOUT, EHOSTUNREACH,  ENETUNREACH, EHOSTDOWN,
                                  ENETDOWN,  EADDRNOTAVAIL, ECONNRESET,  EAGAIN,
                                  EINTR,     ENOBUFS,       EPROTO,      EPIPE};
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        if (why == reasons[i])
            return true;
    }
    return false;
}

/* 0: there will be another attempt. */
static int attempt_failed(struct net *n, struct connecting **at, int why,
                          struct ddp_err *err)
{
    char who[128];
    struct connecting *c = *at;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->greeted = false;
    c->again_ms = now_ms() + c->pause_ms;
    c->pause_ms = 2 * c->pause_ms < PAUSE_MAX_MS ? 2 * c->pause_ms : PAUSE_MAX_MS;
    if (may_pass(why))
        return 0;
    const struct member *m = &n->layout->members[c->rank];
    layout_who(n->layout, c->rank, who, sizeof who);
    forget(at);
    return err_set(err,
                   "%s cannot be reached or has gone: cannot connect to '%s' port %d: %s",
                   who, m->addr, m->port, strerror(why));
}

/* An error that the connection has come to, or 0. */
static int error_of(int fd)
{
    int why = 0;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &(socklen_t){sizeof why});
    return why;
}

/* Has the other kernel taken all that was sent? */
static bool all_acked(int fd)
{
    int unacked = 1;
    return ioctl(fd, SIOCOUTQ, &unacked) == 0 && unacked == 0;
}

/* 1 when the hello has been sent and acknowledged, 0 while it has not, -1 with errno. */
static int greet(struct net *n, struct connecting *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    if (!c->greeted && poll(&p, 1, 0) <= 0)
        return 0;
    errno = error_of(c->fd);
    if (errno != 0)
        return -1;
    if (!c->greeted) {
        struct hello h = net_hello(n, c->rank, (int)c->ch);
        net_prepare_to_send(c->fd);
        if (send(c->fd, &h, sizeof h, MSG_NOSIGNAL) != (ssize_t)sizeof h)
            return -1;
        c->greeted = true;
    }
    return all_acked(c->fd);
}

int net_connect(struct net *n, int rank, enum net_channel ch, int wait_ms,
                struct ddp_err *err)
{
    struct connecting **at = find(n, rank, ch), *c = *at;
    int64_t until_ns = c ? 0 : now_ns() + wait_ms * INT64_C(1000000);
    int rc;
    if (!c) {
        c = *at = xcalloc(1, sizeof *c);
        *c = (struct connecting){.rank = rank, .ch = ch, .fd = -1, .pause_ms = PAUSE_MS};
    }
    if (c->fd < 0 && now_ms() < c->again_ms)
        return 0;
    if (c->fd < 0)
        c->fd = net_start_connect(&n->layout->members[rank]);
    if (c->fd < 0)
        return attempt_failed(n, at, errno, err);
    while ((rc = greet(n, c)) == 0 && now_ns() < until_ns)
        sched_yield();
    if (rc < 0)
        return attempt_failed(n, at, errno, err);
    if (rc > 0) {
        n->streams[rank].out[ch] = c->fd;
        c->fd = -1;
        forget(at);
    }
    return rc;
}
