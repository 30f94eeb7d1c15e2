/* launcher/preflight/bandwidth.c - see bandwidth.h
 *
 * Plain blocking calls with time limits: both ends run in processes that do nothing else.
 */
#include "launcher/preflight/bandwidth.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/preflight/check.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    MESSAGE = 64, /* bytes; the first says what it is */
    PINGS = 500,
    WARM = 20, /* not counted */
    PING_MS = 200,
    FLOOD_MS = 300,
    PIECE = 256 << 10,
    CONNECT_MS = 4000,
    TOKEN_MS = 1000,
    STUCK_S = 4
};
enum { SAYS_PING = 'p', SAYS_FLOOD = 'f' };

static void set_limits(int fd)
{
    struct timeval tv = {STUCK_S, 0};
    sock_set_nonblock(fd, false);
    sock_set_nodelay(fd);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
}

static bool take(int fd, void *p, size_t n)
{
    ssize_t got = recv(fd, p, n, MSG_WAITALL);
    if (got >= 0 && got < (ssize_t)n)
        errno = ECONNRESET;
    return got == (ssize_t)n;
}

static bool give(int fd, const void *p, size_t n)
{
    return send(fd, p, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* --- the serving end ---------------------------------------------------------------- */

static void swallow(int fd)
{
    static char piece[PIECE];
    uint64_t total = 0;
    for (ssize_t n = 1; n > 0;) {
        n = recv(fd, piece, sizeof piece, 0);
        total += n > 0 ? (uint64_t)n : 0;
    }
    total = htobe64(total);
    give(fd, &total, sizeof total);
}

static void serve_one(int fd, const struct secret *token)
{
    struct secret shown;
    char message[MESSAGE];
    set_limits(fd);
    /* whoever connects keeps the neighbour waiting for that long at most */
    if (sock_read_all(fd, shown.bytes, SECRET_SIZE, now_ms() + TOKEN_MS) < 0 ||
        !secret_equal(&shown, token))
        return;
    while (take(fd, message, sizeof message)) {
        if (message[0] == SAYS_FLOOD) {
            swallow(fd);
            return;
        }
        if (!give(fd, message, sizeof message))
            return;
    }
}

int bandwidth_listen(int *port, struct ddp_err *err)
{
    return sock_listen(NULL, 0, port, err);
}

_Noreturn void bandwidth_serve(int fd, const struct secret *token)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, -1);
        int caller = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (caller < 0)
            continue;
        serve_one(caller, token);
        close(caller);
    }
}

/* --- the measuring end -------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The median of there and back, ns; -1 with errno. */
static int64_t measure_latency(int fd)
{
    char message[MESSAGE] = {SAYS_PING};
    int64_t took[PINGS];
    int n = 0;
    for (int64_t until = now_ms() + PING_MS, i = 0;
         n < PINGS && (n == 0 || now_ms() < until); i++) {
        int64_t start = now_ns();
        if (!give(fd, message, sizeof message) || !take(fd, message, sizeof message))
            return -1;
        if (i >= WARM || now_ns() - start > 1000000) /* slow ways need no warming */
            took[n++] = now_ns() - start;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    return took[n / 2];
}

/* Bytes a second; -1 with errno. The other end's count is what has arrived. */
static int64_t measure_rate(int fd)
{
    static char piece[PIECE];
    char message[MESSAGE] = {SAYS_FLOOD};
    uint64_t arrived = 0;
    if (!give(fd, message, sizeof message))
        return -1;
    int64_t start = now_ns(), until = now_ms() + FLOOD_MS;
    while (now_ms() < until) {
        if (send(fd, piece, sizeof piece, MSG_NOSIGNAL) < 0)
            return -1;
    }
    if (shutdown(fd, SHUT_WR) < 0 || !take(fd, &arrived, sizeof arrived))
        return -1;
    return (int64_t)((double)be64toh(arrived) * 1e9 / (double)(now_ns() - start));
}

static int64_t measure(int fd, const struct secret *token, int64_t *rate)
{
    set_limits(fd);
    int64_t ns = give(fd, token->bytes, SECRET_SIZE) ? measure_latency(fd) : -1;
    *rate = ns < 0 ? -1 : measure_rate(fd);
    return *rate < 0 ? -1 : ns;
}

void look_ring(const struct ask *ask)
{
    const struct msg_probe *m = ask->probe;
    struct ddp_err err;
    int64_t rate = 0;
    if (!m->addr)
        return;
    int fd = sock_connect(m->addr, (int)m->port, now_ms() + CONNECT_MS, false, &err);
    if (fd < 0) {
        found_problem(ask,
                      "%s of %s; a firewall between the hosts, or another network "
                      "(--interface)?",
                      err.text, m->peer);
        return;
    }
    int64_t ns = measure(fd, &m->token, &rate);
    if (ns < 0) {
        found_problem(ask,
                      "the connection to %s (%s) breaks off: %s; small packets go "
                      "and large ones do not (MTU), or packets are lost?",
                      m->peer, m->addr, errno == EAGAIN ? "no answer" : strerror(errno));
    } else {
        found_number(ask, m->peer, ns);
        struct ask other = *ask;
        other.check = CHECK_BANDWIDTH;
        found_number(&other, m->peer, rate);
    }
    close(fd);
}
