/* bench/store/peers.c - see peers.h */
#include "bench/store/peers.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PATIENCE_MS 60000
#define SAMPLES     (1u << 20)

static void die(const char *what)
{
    fprintf(stderr, "store-load: %s\n", what);
    exit(1);
}

static const struct exchange *current(const struct peer *a)
{
    return &a->work->steps[a->step];
}

/* Sends what can be sent of [own] [request]. */
static void speak(struct peers *p, struct peer *a)
{
    const struct exchange *x = current(a);
    size_t nown = a->step == 0 ? a->own.n : 0, total = nown + x->request.n;
    while (a->sent < total) {
        size_t in_own = a->sent < nown ? a->sent : nown, in_rest = a->sent - in_own;
        struct iovec io[] = {{a->own.data + in_own, nown - in_own},
                             {x->request.data + in_rest, x->request.n - in_rest}};
        bool first = in_own < nown;
        struct msghdr m = {.msg_iov = first ? io : io + 1, .msg_iovlen = first ? 2 : 1};
        ssize_t n = sendmsg(a->fd, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            return; /* EPOLLOUT is always asked for, edge-triggered */
        if (n < 0 && errno != EINTR)
            die("the server has closed a connection");
        if (n > 0)
            a->sent += (size_t)n;
    }
}

static bool heard_all(const struct peer *a)
{
    const struct exchange *x = current(a);
    if (x->reply_lines)
        return a->lines >= x->reply_lines;
    return a->got >= (x->reply_bytes ? x->reply_bytes : x->reply.n);
}

static void sample(struct peers *p, int64_t ns)
{
    if (p->nsamples < p->room)
        p->samples[p->nsamples++] = ns;
}

/* Takes in a piece of a reply. */
static void take(struct peer *a, const unsigned char *in, size_t n)
{
    const struct exchange *x = current(a);
    if (x->reply_lines) {
        for (size_t i = 0; i < n; i++)
            a->lines += in[i] == '\n';
    } else if (!x->reply_bytes) {
        if (a->got + n > x->reply.n || memcmp(x->reply.data + a->got, in, n) != 0)
            die("a reply is not what it must be");
    }
    a->got += n;
}

/* Returns true when the peer has ended its round. */
static bool listen_to(struct peers *p, struct peer *a)
{
    static unsigned char in[256 << 10];
    while (!heard_all(a)) {
        ssize_t n = recv(a->fd, in, sizeof in, 0);
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n == 0 || (n < 0 && errno != EINTR))
            die("the server has closed a connection");
        if (n > 0)
            take(a, in, (size_t)n);
    }
    a->sent = a->got = a->lines = 0;
    if (++a->step < a->work->nsteps) {
        speak(p, a);
        return listen_to(p, a);
    }
    sample(p, now_ns() - a->began_ns);
    return true;
}

void peer_start(struct peers *p, size_t i, const struct workload *w)
{
    struct peer *a = &p->all[i];
    a->work = w;
    a->step = a->sent = a->got = a->lines = 0;
    a->began_ns = now_ns();
    p->busy++;
    speak(p, a);
}

void peers_run(struct peers *p, size_t more)
{
    struct epoll_event events[256];
    while (p->busy > 0) {
        int n = epoll_wait(p->epoll, events, (int)ARRAY_LEN(events), PATIENCE_MS);
        if (n == 0)
            die("no answer within 60 s");
        for (int e = 0; e < n; e++) {
            struct peer *a = events[e].data.ptr;
            if (!a->work)
                continue;
            if (events[e].events & EPOLLOUT)
                speak(p, a);
            if (!listen_to(p, a))
                continue;
            p->busy--;
            if (more > 0) {
                more--;
                peer_start(p, (size_t)(a - p->all), a->work);
            } else {
                a->work = NULL;
            }
        }
    }
}

void peers_run_one(struct peers *p, size_t i, const struct exchange *x)
{
    struct workload w = {.steps = {*x}, .nsteps = 1, .ops = 1};
    size_t kept = p->nsamples;
    peer_start(p, i, &w);
    peers_run(p, 0);
    p->nsamples = kept;
}

/* From the address `ahead` after `first`. */
static int connect_from(const char *first, size_t ahead, const char *host, int port)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
    inet_pton(AF_INET, first, &from.sin_addr);
    inet_pton(AF_INET, host, &to.sin_addr);
    from.sin_addr.s_addr = htonl(ntohl(from.sin_addr.s_addr) + (uint32_t)ahead);
    to.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){1}, sizeof(int));
    if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from) < 0 ||
        connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
        die(strerror(errno));
    sock_set_nodelay(fd);
    sock_set_nonblock(fd, true);
    return fd;
}

void peers_open(struct peers *p, const char *host, int port, const struct hosts *from,
                enum kind kind, size_t n, size_t window)
{
    struct workload hello = {.nsteps = 1, .ops = 1};
    workload_hello(kind, &hello.steps[0]);
    *p = (struct peers){.epoll = epoll_create1(EPOLL_CLOEXEC),
                        .n = n,
                        .all = xcalloc(n, sizeof *p->all),
                        .samples = xcalloc(SAMPLES, sizeof *p->samples),
                        .room = SAMPLES};
    for (size_t i = 0; i < n; i++) {
        struct ddp_err err;
        struct peer *a = &p->all[i];
        a->fd = from->first
                    ? connect_from(from->first, i / from->each, host, port)
                    : sock_connect(host, port, now_ms() + PATIENCE_MS, true, &err);
        if (a->fd < 0)
            die(err.text);
        struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = a};
        epoll_ctl(p->epoll, EPOLL_CTL_ADD, a->fd, &ev);
        peer_start(p, i, &hello);
        if (p->busy >= window)
            peers_run(p, 0);
    }
    peers_run(p, 0);
    p->nsamples = 0;
    exchange_finish(&hello.steps[0]);
}

void peers_close(struct peers *p)
{
    for (size_t i = 0; i < p->n; i++) {
        close(p->all[i].fd);
        buf_finish(&p->all[i].own);
    }
    close(p->epoll);
    free(p->all);
    free(p->samples);
}
