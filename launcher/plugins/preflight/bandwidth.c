/* launcher/plugins/preflight/bandwidth.c - see bandwidth.h
 *
 * Blocking calls with time limits: both ends run in processes of their own.
 */
#include "launcher/plugins/preflight/bandwidth.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/plugins/preflight/check.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    MESSAGE = 64, /* bytes; the first is the type */
    PINGS = 500,
    WARM = 20, /* warm-up round trips, not counted */
    PING_MS = 200,
    STREAM_MS = 300,
    PIECE = 256 << 10,
    CONNECT_MS = 4000,
    TOKEN_MS = 1000,
    STUCK_S = 4
};
enum { TYPE_PING = 'p', TYPE_STREAM = 'f' };

static void set_limits(int fd)
{
    struct timeval tv = {STUCK_S, 0};
    sock_set_nonblock(fd, false);
    sock_set_nodelay(fd);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
}

static bool recv_all(int fd, void *p, size_t n)
{
    ssize_t got = recv(fd, p, n, MSG_WAITALL);
    if (got >= 0 && got < (ssize_t)n)
        errno = ECONNRESET;
    return got == (ssize_t)n;
}

static bool send_all(int fd, const void *p, size_t n)
{
    return send(fd, p, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* --- server ------------------------------------------------------------------------- */

static void receive_stream(int fd)
{
    static char piece[PIECE];
    uint64_t total = 0;
    for (ssize_t n = 1; n > 0;) {
        n = recv(fd, piece, sizeof piece, 0);
        total += n > 0 ? (uint64_t)n : 0;
    }
    total = htobe64(total);
    send_all(fd, &total, sizeof total);
}

static void serve_one(int fd, const struct secret *token)
{
    struct secret token_got;
    char message[MESSAGE];
    set_limits(fd);
    /* a stranger blocks the server for at most TOKEN_MS */
    if (sock_read_all(fd, token_got.bytes, SECRET_SIZE, now_ms() + TOKEN_MS) < 0 ||
        !secret_equal(&token_got, token))
        return;
    while (recv_all(fd, message, sizeof message)) {
        if (message[0] == TYPE_STREAM) {
            receive_stream(fd);
            return;
        }
        if (!send_all(fd, message, sizeof message))
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
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        serve_one(client, token);
        close(client);
    }
}

/* --- client ------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Median round-trip time, ns; -1 with errno. */
static int64_t measure_latency(int fd)
{
    char message[MESSAGE] = {TYPE_PING};
    int64_t took[PINGS];
    int n = 0;
    for (int64_t until = now_ms() + PING_MS, i = 0;
         n < PINGS && (n == 0 || now_ms() < until); i++) {
        int64_t start = now_ns();
        if (!send_all(fd, message, sizeof message) ||
            !recv_all(fd, message, sizeof message))
            return -1;
        if (i >= WARM || now_ns() - start > 1000000) /* slow links need no warm-up */
            took[n++] = now_ns() - start;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    return took[n / 2];
}

/* Bytes per second, by the receiver's count; -1 with errno. */
static int64_t measure_rate(int fd)
{
    static char piece[PIECE];
    char message[MESSAGE] = {TYPE_STREAM};
    uint64_t arrived = 0;
    if (!send_all(fd, message, sizeof message))
        return -1;
    int64_t start = now_ns(), until = now_ms() + STREAM_MS;
    while (now_ms() < until) {
        if (send(fd, piece, sizeof piece, MSG_NOSIGNAL) < 0)
            return -1;
    }
    if (shutdown(fd, SHUT_WR) < 0 || !recv_all(fd, &arrived, sizeof arrived))
        return -1;
    return (int64_t)((double)be64toh(arrived) * 1e9 / (double)(now_ns() - start));
}

static int64_t measure(int fd, const struct secret *token, int64_t *rate)
{
    set_limits(fd);
    int64_t ns = send_all(fd, token->bytes, SECRET_SIZE) ? measure_latency(fd) : -1;
    *rate = ns < 0 ? -1 : measure_rate(fd);
    return *rate < 0 ? -1 : ns;
}

void check_bandwidth(const struct check_ctx *ctx)
{
    const struct msg_probe *m = ctx->probe;
    struct ddp_err err;
    int64_t rate = 0;
    if (!m->addr)
        return;
    int fd = sock_connect(m->addr, (int)m->port, now_ms() + CONNECT_MS, false, &err);
    if (fd < 0) {
        found_problem(ctx,
                      "%s of %s; a firewall between the hosts, or another network "
                      "(--interface)?",
                      err.text, m->peer);
        return;
    }
    int64_t ns = measure(fd, &m->token, &rate);
    if (ns < 0) {
        found_problem(ctx,
                      "the connection to %s (%s) breaks off: %s; small packets go "
                      "and large ones do not (MTU), or packets are lost?",
                      m->peer, m->addr, errno == EAGAIN ? "no answer" : strerror(errno));
    } else {
        found_number(ctx, m->peer, ns);
        struct check_ctx other = *ctx;
        other.check = CHECK_BANDWIDTH;
        found_number(&other, m->peer, rate);
    }
    close(fd);
}
