/* launcher/plugins/preflight/check_net.c - names, ports, and the way to the next host */
#include "launcher/plugins/preflight/check.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"

#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>

/* Up to ALL_UP_TO hosts resolve all names; beyond that the master's and the neighbours',
 * to avoid n^2 queries to a name server. */
enum { ALL_UP_TO = 32, NEAR = 2 };

enum { CONNECT_MS = 4000, LARGE = 32768 };

static bool is_resolved(const struct check_ctx *ctx, unsigned other)
{
    const struct strv *names = &ctx->probe->names;
    unsigned n = (unsigned)names->n, away = (other + n - ctx->self) % (n ? n : 1);
    if (!names->v[other][0])
        return false;
    return n <= ALL_UP_TO || other == ctx->probe->master || away <= NEAR ||
           away >= n - NEAR;
}

/* Compares the first labels: a short name and its full name are the same host. */
static bool same_host(const char *a, const char *b)
{
    size_t n = strcspn(a, ".");
    return n == strcspn(b, ".") && strncasecmp(a, b, n) == 0;
}

static void check_reverse(const struct check_ctx *ctx, const char *name,
                          const struct addrinfo *a)
{
    char back[NI_MAXHOST], addr[INET6_ADDRSTRLEN];
    sock_addr(a->ai_addr, addr, sizeof addr);
    if (strcmp(addr, name) == 0) /* the host list has addresses, not names */
        return;
    int rc =
        getnameinfo(a->ai_addr, a->ai_addrlen, back, sizeof back, NULL, 0, NI_NAMEREQD);
    if (rc != 0)
        found_remark(ctx,
                     "the address %s of '%s' has no name there; some programs (MPI, "
                     "Hadoop, Kerberos) ask: see /etc/hosts, reverse DNS",
                     addr, name);
    else if (!same_host(back, name))
        found_remark(ctx, "'%s' is %s there, whose reverse lookup gives '%s'", name, addr,
                     back);
}

static void check_name(const struct check_ctx *ctx, unsigned other)
{
    const char *name = ctx->probe->names.v[other];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char addr[INET6_ADDRSTRLEN];
    int rc = getaddrinfo(name, NULL, &hints, &list);
    if (rc != 0) {
        found_problem(ctx, "'%s' does not resolve there: %s; see /etc/hosts and DNS",
                      name, gai_strerror(rc));
        return;
    }
    sock_addr(list->ai_addr, addr, sizeof addr);
    if (other == ctx->self) {
        if (sock_is_loopback(addr))
            found_remark(ctx,
                         "its own name '%s' is %s there; ranks are given the right "
                         "interface, other programs take this one",
                         name, addr);
    } else {
        /* the order of several addresses differs between hosts: not compared */
        found_value(ctx, name,
                    list->ai_next && list->ai_next->ai_family == AF_INET ? "several"
                                                                         : addr,
                    "%s", addr);
        if (sock_is_loopback(addr))
            found_problem(ctx,
                          "'%s' resolves to %s there, a loopback address; see /etc/hosts",
                          name, addr);
        else
            check_reverse(ctx, name, list);
    }
    freeaddrinfo(list);
}

void check_names(const struct check_ctx *ctx)
{
    for (unsigned i = 0; i < ctx->probe->names.n; i++) {
        if (is_resolved(ctx, i))
            check_name(ctx, i);
    }
}

/* Can ranks listen: on any free port, on the master on --store-port if given. */
void check_port(const struct check_ctx *ctx)
{
    struct ddp_err err;
    bool ours = ctx->probe->store_port && ctx->probe->master == ctx->self;
    int port = ours ? (int)ctx->probe->store_port : 0, bound;
    char addr[INET6_ADDRSTRLEN];
    SCOPED(close_fd) int fd = sock_listen(NULL, port, &bound, &err);
    if (fd < 0)
        found_problem(ctx, "%s; %s", err.text,
                      port ? "omit --store-port to use a free port"
                           : "no free port left? (ss -s)");
    else
        found_value(ctx, NULL, NULL, ours ? "%d is free" : "free ones", bound);
    if (ctx->probe->interface &&
        sock_interface_addr(ctx->probe->interface, addr, sizeof addr, &err) < 0)
        found_problem(ctx, "%s there; see 'ip addr', --interface", err.text);
}

/* Are packets of the interface's full size acknowledged? On a way that takes smaller ones
 * only (jumbo frames on some of its parts) connections are made, and then stand still. */
static bool passes_large(int fd, int64_t deadline_ms)
{
    static const char data[LARGE];
    int unacked = sock_write_all(fd, data, sizeof data, deadline_ms) < 0 ? LARGE : 1;
    while (unacked > 0 && ioctl(fd, SIOCOUTQ, &unacked) == 0 && now_ms() < deadline_ms)
        sleep_ms(1);
    return unacked == 0;
}

/* Can a rank here reach one of the next host? */
void check_network(const struct check_ctx *ctx)
{
    const struct msg_probe *m = ctx->probe;
    struct ddp_err err;
    int64_t start = now_ns();
    if (!m->addr)
        return;
    SCOPED(close_fd)
    int fd = sock_connect(m->addr, (int)m->port, now_ms() + CONNECT_MS, false, &err);
    if (fd < 0) {
        found_problem(ctx,
                      "%s of %s; a firewall between the hosts, or another network "
                      "(--interface)?",
                      err.text, m->peer);
        return;
    }
    found_number(ctx, now_ns() - start);
    if (!passes_large(fd, now_ms() + CONNECT_MS))
        found_problem(
            ctx,
            "%s can be connected to, but gets nothing of %d bytes: are large packets "
            "lost? 'ip link' shows each host's MTU",
            m->peer, LARGE);
}
