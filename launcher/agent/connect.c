/* launcher/agent/connect.c - see connect.h
 *
 * The addresses are tried in turn. A connection that was accepted is kept while the
 * others are tried: the kernel of a launcher that is stopped accepts it, and the offer
 * comes when the launcher goes on. Time in which such a kernel answers counts apart.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/connect.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/limit.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/transport/transport_proc.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CONNECT_MS: a network may be cut for a while. It is less than --start-timeout.
 * DETACHED_MS: a launcher may be stopped. Without a lifeline, whose end says that the job
 * has ended, the wait has a limit, as another program may have the launcher's port.
 * PAUSE_MS: until a launcher that has accepted and closed at once is called again.
 * REFUSED_MS: a host or a firewall refuses sooner; the kernel takes three seconds to
 * report that a host of our own network is not there. */
enum {
    CONNECT_MS = 30000,
    DETACHED_MS = 600000,
    TRY_MS = 4000,
    PAUSE_MS = 250,
    REFUSED_MS = 1000,
    KEEPALIVE_S = 3
};

struct calls {
    const struct bootstrap *s; /* borrowed, as `out` and `err` */
    struct connected *out;
    struct ddp_err *err; /* of the likeliest address */
    struct strv addrs;   /* owned: "ADDRESS PORT" */
    /* owned: [i] is the connection to addrs.v[i], and the last one stdin; the descriptor
     * is -1 where there is none */
    struct pollfd *fds, *in;
    /* what is left: of CONNECT_MS; of DETACHED_MS while a launcher is stopped, without a
     * limit if there is a lifeline; of DETACHED_MS while only ssh may reach it */
    int64_t left_ms, stopped_ms, stdio_ms;
    bool silent;  /* an address was, in this round, and may answer later */
    bool refused; /* the likeliest address, by its host or a firewall: no cut */
    bool ended;   /* linked, or the starter has closed stdin */
};

/* The address that ssh or Slurm gives comes first. */
static void list_addresses(struct calls *c)
{
    const struct strv *calls = &c->s->calls;
    const char *from = getenv("SLURM_LAUNCH_NODE_IPADDR");
    char addr[64], port[16];
    if (c->s->nnodes == 0 || !from)
        from = getenv("SSH_CONNECTION");
    if (from && sscanf(from, "%63s", addr) == 1 &&
        sscanf(calls->v[0], "%*s %15s", port) == 1)
        strv_pushf(&c->addrs, "%s %s", addr, port);
    for (size_t i = 0; i < calls->n; i++) {
        if (c->addrs.n == 0 || strcmp(c->addrs.v[0], calls->v[i]) != 0)
            strv_push(&c->addrs, calls->v[i]);
    }
}

static bool any_is_open(const struct calls *c, bool answers)
{
    for (const struct pollfd *f = c->fds; f < c->in; f++) {
        if (f->fd >= 0 && !(answers && sock_unanswered(f->fd)))
            return true;
    }
    return false;
}

/* The likeliest address refuses. If it were silent, the network might be cut, and ssh's
 * connection with it. */
static bool only_ssh_is_left(const struct calls *c)
{
    return c->refused && c->out->announced && !any_is_open(c, true);
}

/* The time that a wait is counted in now. */
static int64_t *budget(struct calls *c)
{
    if (c->stopped_ms > 0 && any_is_open(c, true))
        return &c->stopped_ms;
    if (c->stdio_ms > 0 && only_ssh_is_left(c))
        return &c->stdio_ms;
    return &c->left_ms;
}

/* Of a wait of `asked_ms` that began then. */
static void count(struct calls *c, int64_t began_ms, int64_t asked_ms)
{
    *budget(c) -= limit_count_ms(now_ms() - began_ms, asked_ms);
}

/* The first that can be read or was closed; NULL: none within `ms`. */
static struct pollfd *await(struct calls *c, struct pollfd *fds, size_t n, int64_t ms)
{
    int64_t began_ms = now_ms();
    int got = poll(fds, n, (int)ms);
    count(c, began_ms, ms);
    for (size_t i = 0; i < n && got > 0; i++) {
        if (fds[i].revents)
            return &fds[i];
    }
    return NULL;
}

/* Who has made an offer is a launcher. Its proof may be late, as packets are lost or it
 * is stopped, and if this side gave up, it would declare the node lost. */
static bool prove(struct calls *c, const struct pollfd *f, struct ddp_err *err)
{
    struct pollfd fds[] = {{.fd = f->fd, .events = POLLIN}, *c->in};
    const struct pollfd *got = NULL;
    struct handshake h;
    int out = f == c->in ? STDOUT_FILENO : f->fd;
    bool ok = bootstrap_answer(&c->s->key, c->s->node, f->fd, out, now_ms() + TRY_MS, &h,
                               err) == 0;
    while (ok && !got && c->left_ms > 0)
        got = await(c, fds, c->out->announced ? 1 : 2, TRY_MS);
    c->ended |= got == &fds[1];
    if (ok && got != fds) {
        errno = ETIMEDOUT;
        err_errno(err, "the handshake was not completed");
    }
    ok = got == fds &&
         bootstrap_confirm(&h, f->fd, now_ms() + TRY_MS, &c->out->keys, err) == 0;
    secret_wipe(&h, sizeof h);
    return ok;
}

/* Wait for an offer, or for the end of the lifeline. */
static void take_offer(struct calls *c, int64_t ms)
{
    struct ddp_err why = {""};
    struct pollfd *f = await(c, c->fds, c->addrs.n + 1, ms);
    if (!f)
        return;
    if (f == c->in && !c->out->announced) {
        c->ended = true;
        return;
    }
    if (prove(c, f, &why)) {
        c->out->fd = f->fd;
        c->ended = true;
    } else {
        c->ended |= f == c->in; /* the last resort; without a lifeline it ends here */
        c->silent |= errno == ECONNRESET || errno == ETIMEDOUT;
        if (f == c->fds)
            err_set(c->err, "'%s': %s", c->addrs.v[0], why.text);
        if (f != c->in)
            close(f->fd);
    }
    f->fd = -1;
}

static void call(struct calls *c, size_t i)
{
    struct ddp_err why;
    int64_t began_ms = now_ms();
    if (c->fds[i].fd >= 0 || c->ended)
        return;
    int fd = bootstrap_call(c->addrs.v[i], began_ms + TRY_MS, &why);
    c->silent |= fd < 0 && errno == ETIMEDOUT;
    if (i == 0)
        c->refused = fd < 0 && now_ms() - began_ms < REFUSED_MS &&
                     (errno == ECONNREFUSED || errno == EHOSTUNREACH);
    count(c, began_ms, TRY_MS);
    if (fd >= 0)
        err_set(&why, "'%s': no handshake received", c->addrs.v[i]);
    if (i == 0)
        *c->err = why;
    if (fd < 0)
        return;
    sock_set_keepalive(fd, KEEPALIVE_S, KEEPALIVE_S, CONNECT_MS / 1000 / KEEPALIVE_S);
    c->fds[i].fd = fd;
    take_offer(c, TRY_MS);
}

/* ssh forwards stdin and stdout. The launcher may close them when it is reached by TCP,
 * so that stdin is no lifeline any more. A launcher that is stopped answers there later,
 * also if no address can be reached. */
static void announce_stdio(struct calls *c)
{
    static const char line[] = TRANSPORT_PROC_LINK;
    if (!c->s->stdio || c->out->announced || c->ended)
        return;
    sock_set_nonblock(STDIN_FILENO, true);
    sock_set_nonblock(STDOUT_FILENO, true);
    c->out->announced = true;
    c->in->events = POLLIN;
    sock_write_all(STDOUT_FILENO, line, sizeof line - 1, now_ms() + TRY_MS);
}

int connect_launcher(const struct bootstrap *s, struct connected *out,
                     struct ddp_err *err)
{
    struct calls c = {.s = s,
                      .out = out,
                      .err = err,
                      .left_ms = CONNECT_MS,
                      .stdio_ms = DETACHED_MS,
                      .stopped_ms = s->detached ? DETACHED_MS : INT64_MAX};
    list_addresses(&c);
    c.fds = xcalloc(c.addrs.n + 1, sizeof *c.fds);
    c.in = c.fds + c.addrs.n;
    for (struct pollfd *f = c.fds; f < c.in; f++)
        *f = (struct pollfd){.fd = -1, .events = POLLIN};
    *c.in = (struct pollfd){.fd = s->detached ? -1 : STDIN_FILENO, .events = POLLRDHUP};
    out->fd = -1;
    do {
        c.silent = false;
        for (size_t i = 0; i < c.addrs.n; i++)
            call(&c, i);
        announce_stdio(&c);
        if (!c.ended)
            take_offer(&c, s->stdio || any_is_open(&c, false) ? TRY_MS : PAUSE_MS);
    } while (!c.ended && c.left_ms > 0 &&
             (c.silent || only_ssh_is_left(&c) || any_is_open(&c, false)));
    if (out->fd == STDIN_FILENO)
        log_info("%s; over ssh instead", err->text);
    for (struct pollfd *f = c.fds; f < c.in; f++)
        close_fd(&f->fd);
    free(c.fds);
    strv_finish(&c.addrs);
    return out->fd < 0 ? err_prefix(err, "cannot call back") : 0;
}
