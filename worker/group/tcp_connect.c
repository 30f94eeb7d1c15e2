/* worker/group/tcp_connect.c - connections to ranks of other hosts
 *
 * No call waits for a connection: one that is not complete is checked whenever data are
 * to be sent on it, until the caller's deadline. The kernel retransmits a lost SYN
 * after 1, 3, 7, ... seconds; attempts that fail for a temporary reason are repeated.
 * Only "connection refused" means that the rank has gone, since each rank listens from
 * before the others know its address until it exits.
 *
 * A connection is used once its hello has been acknowledged. Before that it may exist
 * on this side only: a kernel whose accept queue is full answers with SYN cookies,
 * drops the following segments, and resets a connection whose first segment it has
 * missed.
 */
#include "worker/group/tcp.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PAUSE_MS = 50, /* between attempts; doubled up to: */
    PAUSE_MAX_MS = 1000,
    SILENCE_MS = 20000, /* of a host that has something to acknowledge: it is down */
    NEAR_US = 200       /* round trip within one cluster */
};

static const char hello_magic[8] = "ddpnet4";

struct hello tcp_hello(const struct tcp *n, int rank, int what)
{
    struct hello h = {.from = n->layout->rank, .what = what};
    memcpy(h.magic, hello_magic, sizeof h.magic);
    memcpy(h.token, n->layout->members[rank].token, sizeof h.token);
    return h;
}

bool tcp_hello_is_sound(const struct tcp *n, const struct hello *h)
{
    return token_same(h->token, n->layout->members[n->layout->rank].token) &&
           memcmp(h->magic, hello_magic, sizeof h->magic) == 0 && h->from >= 0 &&
           h->from < n->layout->size && h->from != n->layout->rank && h->what >= 0 &&
           h->what <= HELLO_LEAVE;
}

int tcp_gone(const struct tcp *n, int rank, const char *how, struct ddp_err *err)
{
    return err_set(err, "%s has gone (%s)", layout_who(n->layout, rank).text, how);
}

int tcp_start_connect(const struct member *m)
{
    int fd = socket(m->addr.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, &m->addr.sa, sizeof m->addr) < 0 && errno != EINPROGRESS)
        close_fd(&fd); /* keeps errno */
    return fd;
}

/* BBR, where it is the system's default, is for long distances: it paces by timers,
 * which on a short path costs two thirds of the bandwidth and three times the CPU time.
 * Reno is always available and permitted. */
static void avoid_bbr_when_near(int fd)
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

void tcp_prepare_to_send(int fd)
{
    avoid_bbr_when_near(fd);
    sock_set_keepalive(fd, 5, 2, 5);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

/* The retransmission timeout doubles each time, so about as much time has passed since
 * the first one. While a rank computes and receives nothing, the kernel probes its full
 * window, and a live host acknowledges that; TCP_USER_TIMEOUT would end the connection.
 */
bool tcp_is_silent(int fd)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0)
        return false;
    return (info.tcpi_retransmits > 0 && info.tcpi_rto >= SILENCE_MS * 1000) ||
           (info.tcpi_probes > 2 && info.tcpi_last_ack_recv >= SILENCE_MS);
}

/* ---- streams that are being connected ---- */

/* Where the stream is in the list, or its end. */
static struct connecting **find(struct tcp *n, int rank, enum tcp_channel ch)
{
    struct connecting **at = &n->connecting;
    while (*at && ((*at)->rank != rank || (*at)->ch != ch))
        at = &(*at)->next;
    return at;
}

const struct connecting *tcp_connecting(struct tcp *n, int rank, enum tcp_channel ch)
{
    return *find(n, rank, ch);
}

static void forget(struct connecting **at)
{
    struct connecting *c = *at;
    *at = c->next;
    close_fd(&c->fd);
    free(c);
}

void tcp_forget_connecting(struct tcp *n, int rank, enum tcp_channel ch)
{
    struct connecting **at = find(n, rank, ch);
    if (*at)
        forget(at);
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

/* Returns 0 when another attempt will be made. */
static int attempt_failed(struct tcp *n, struct connecting **at, int why,
                          struct ddp_err *err)
{
    char addr[64];
    struct connecting *c = *at;
    close_fd(&c->fd);
    c->greeted = false;
    c->again_ms = now_ms() + c->pause_ms;
    c->pause_ms = 2 * c->pause_ms < PAUSE_MAX_MS ? 2 * c->pause_ms : PAUSE_MAX_MS;
    if (may_pass(why))
        return 0;
    sock_name(&n->layout->members[c->rank].addr.sa, addr, sizeof addr);
    err_set(err, "%s cannot be reached or has gone: cannot connect to %s: %s",
            layout_who(n->layout, c->rank).text, addr, strerror(why));
    forget(at);
    return -1;
}

int tcp_error_of(int fd)
{
    int why = 0;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &(socklen_t){sizeof why});
    return why;
}

/* Has the peer's kernel acknowledged everything that was sent? */
static bool all_acked(int fd)
{
    int unacked = 1;
    return ioctl(fd, SIOCOUTQ, &unacked) == 0 && unacked == 0;
}

/* 1 when the hello has been sent and acknowledged, 0 while it has not, -1 with errno. */
static int greet(struct tcp *n, struct connecting *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    if (!c->greeted && poll(&p, 1, 0) <= 0)
        return 0;
    errno = tcp_error_of(c->fd);
    if (errno != 0)
        return -1;
    if (!c->greeted) {
        struct hello h = tcp_hello(n, c->rank, (int)c->ch);
        tcp_prepare_to_send(c->fd);
        if (send(c->fd, &h, sizeof h, MSG_NOSIGNAL) != (ssize_t)sizeof h)
            return -1;
        c->greeted = true;
    }
    return all_acked(c->fd);
}

int tcp_connect(struct tcp *n, int rank, enum tcp_channel ch, int wait_ms,
                struct ddp_err *err)
{
    struct connecting **at = find(n, rank, ch), *c = *at;
    int64_t until_ns = c ? 0 : now_ns() + wait_ms * INT64_C(1000000);
    int rc;
    if (!c) {
        c = xcalloc(1, sizeof *c);
        *c = (struct connecting){.rank = rank, .ch = ch, .fd = -1, .pause_ms = PAUSE_MS};
        atomic_thread_fence(memory_order_release); /* tcp_close_copies(), after a fork */
        *at = c;
    }
    if (c->fd < 0 && now_ms() < c->again_ms)
        return 0;
    if (c->fd < 0)
        c->fd = tcp_start_connect(&n->layout->members[rank]);
    if (c->fd < 0)
        return attempt_failed(n, at, errno, err);
    while ((rc = greet(n, c)) == 0 && now_ns() < until_ns)
        sched_yield();
    if (rc < 0)
        return attempt_failed(n, at, errno, err);
    if (rc > 0) {
        tcp_stream(n, rank, ch)->out = c->fd;
        c->fd = -1;
        forget(at);
    }
    return rc;
}
