/* launcher/preflight/check_net.c - names, both ways, and ports of a node */
#include "launcher/preflight/check.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All names on few hosts; on many the master's and the neighbours', so that a name server
 * is not asked n^2 questions. */
enum { ALL_UP_TO = 32, NEAR = 2 };

static bool is_asked(const struct ask *ask, unsigned other)
{
    const struct strv *names = &ask->probe->names;
    unsigned n = (unsigned)names->n, away = (other + n - ask->self) % (n ? n : 1);
    if (!names->v[other][0])
        return false;
    return n <= ALL_UP_TO || other == ask->probe->master || away <= NEAR ||
           away >= n - NEAR;
}

static bool is_loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0;
}

static int resolve(const char *name, struct addrinfo **list)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    return getaddrinfo(name, NULL, &hints, list);
}

/* The first label of both: a short name and the full one are the same host. */
static bool same_host(const char *a, const char *b)
{
    size_t n = strcspn(a, ".");
    return n == strcspn(b, ".") && strncasecmp(a, b, n) == 0;
}

static void look_back(const struct ask *ask, const char *name, const struct addrinfo *a)
{
    char back[NI_MAXHOST], addr[INET6_ADDRSTRLEN];
    sock_addr(a->ai_addr, addr, sizeof addr);
    if (strcmp(addr, name) == 0) /* the host list has addresses in it, not names */
        return;
    int rc =
        getnameinfo(a->ai_addr, a->ai_addrlen, back, sizeof back, NULL, 0, NI_NAMEREQD);
    if (rc != 0)
        found_remark(ask,
                     "the address %s of '%s' has no name there; some programs (MPI, "
                     "Hadoop, Kerberos) ask: see /etc/hosts, reverse DNS",
                     addr, name);
    else if (!same_host(back, name))
        found_remark(ask, "'%s' is %s there, whose reverse lookup gives '%s'", name, addr,
                     back);
}

static void look_at(const struct ask *ask, unsigned other)
{
    const char *name = ask->probe->names.v[other];
    struct addrinfo *list = NULL;
    char addr[INET6_ADDRSTRLEN];
    int rc = resolve(name, &list);
    if (rc != 0) {
        found_problem(ask, "'%s' does not resolve there: %s; see /etc/hosts and DNS",
                      name, gai_strerror(rc));
        return;
    }
    sock_addr(list->ai_addr, addr, sizeof addr);
    if (other == ask->self) {
        if (is_loopback(addr))
            found_remark(ask,
                         "its own name '%s' is %s there; ranks are given the right "
                         "interface, other programs take this one",
                         name, addr);
    } else {
        /* from several addresses one host takes the first, another the second */
        found_value(ask, name,
                    list->ai_next && list->ai_next->ai_family == AF_INET ? "several"
                                                                         : addr,
                    "%s", addr);
        if (is_loopback(addr))
            found_problem(ask, "'%s' is %s there, which is no way to it; see /etc/hosts",
                          name, addr);
        else
            look_back(ask, name, list);
    }
    freeaddrinfo(list);
}

void look_names(const struct ask *ask)
{
    for (unsigned i = 0; i < ask->probe->names.n; i++) {
        if (is_asked(ask, i))
            look_at(ask, i);
    }
}

/* Whether ranks could listen at all, and on the store's port where it is given. */
void look_port(const struct ask *ask)
{
    struct ddp_err err;
    bool ours = ask->probe->store_port && ask->probe->master == ask->self;
    int port = ours ? (int)ask->probe->store_port : 0, bound;
    char addr[INET6_ADDRSTRLEN];
    int fd = sock_listen(NULL, port, &bound, &err);
    if (fd < 0)
        found_problem(ask, "%s; %s", err.text,
                      port ? "omit --store-port to use a free port"
                           : "is there no free port left (ss -s)?");
    else
        found_value(ask, NULL, NULL, ours ? "%d is free" : "free ones", bound);
    if (fd >= 0)
        close(fd);
    if (ask->probe->interface &&
        sock_interface_addr(ask->probe->interface, addr, sizeof addr, &err) < 0)
        found_problem(ask, "%s there; see 'ip addr', --interface", err.text);
}
