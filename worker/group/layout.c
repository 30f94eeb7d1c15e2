/* worker/group/layout.c - see layout.h */
#include "worker/group/layout.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/lookup.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "common/scoped.h"
#include "common/sock.h"

#include <arpa/inet.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char card_magic[8] = "ddpcard";

socklen_t listener_address(const unsigned char *token, struct sockaddr_un *sa)
{
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(sa->sun_path + 1, sizeof sa->sun_path - 1, "ddpgroup-%016llx",
                     (unsigned long long)fnv1a(FNV1A, token, TOKEN_BYTES));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int listeners_open(struct listeners *listeners, struct card *card, struct ddp_err *err)
{
    struct sockaddr_un sa;
    card->port = 0; /* of a card that was copied */
    while (getrandom(card->token, TOKEN_BYTES, 0) != TOKEN_BYTES)
        ; /* only interrupted by signals, and only before the pool is ready */
    socklen_t len = listener_address(card->token, &sa);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *listeners = (struct listeners){.tcp_fd = -1, .unix_fd = fd};
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, len) < 0 || listen(fd, 4096) < 0)
        return err_errno(err, "cannot listen for the ranks of this host");
    listeners->tcp_fd = sock_listen(NULL, 0, &card->port, err);
    return listeners->tcp_fd < 0 ? -1 : 0;
}

void listeners_close(struct listeners *listeners)
{
    close_fd(&listeners->tcp_fd);
    close_fd(&listeners->unix_fd);
}

static uint64_t host_of(int rank, const char *host_name, bool alone)
{
    char boot[64];
    struct stat net;
    const char *given = getenv("DDP_HOST_ID");
    read_start("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (stat("/proc/self/ns/net", &net) < 0)
        net.st_ino = 0;
    OWNED char *text =
        xasprintf("%s net %lu uid %u %s %s rank %d", boot, (unsigned long)net.st_ino,
                  (unsigned)geteuid(), host_name, given ? given : "", alone ? rank : -1);
    return fnv1a(FNV1A, text, strlen(text));
}

/* Where the other hosts reach me: the interface that the user names for Gloo (the first
 * of a list), else the one towards MASTER_ADDR. The master's own name often resolves to
 * loopback on the master itself (127.0.1.1 in Debian's /etc/hosts), which no other host
 * can use: then any interface that is up, unless loopback was asked for by its number. */
static int own_addr(const char *master, int64_t deadline_ms, char *text, size_t size,
                    struct ddp_err *err)
{
    const char *names = getenv("GLOO_SOCKET_IFNAME");
    if (names && *names) {
        OWNED char *first = xstrndup(names, strcspn(names, ","));
        return sock_interface_addr(first, text, size, err) < 0
                   ? err_prefix(err, "GLOO_SOCKET_IFNAME")
                   : 0;
    }
    struct sockaddr_storage own;
    bool found = master && lookup_route(master, deadline_ms, &own);
    if (found)
        sock_addr((struct sockaddr *)&own, text, size);
    if (found && (!sock_is_loopback(text) || sock_is_loopback(master)))
        return 0;
    char other[INET6_ADDRSTRLEN];
    if (sock_interface_addr(NULL, other, sizeof other, NULL) == 0)
        snprintf(text, size, "%s", other);
    else if (!found)
        snprintf(text, size, "127.0.0.1");
    return 0;
}

int card_make(struct card *card, int rank, const char *toward, int64_t deadline_ms,
              bool alone, struct ddp_err *err)
{
    *card = (struct card){.host_name = "localhost"};
    memcpy(card->magic, card_magic, sizeof card_magic);
    gethostname(card->host_name, sizeof card->host_name - 1);
    card->host = host_of(rank, card->host_name, alone);
    return own_addr(toward, deadline_ms, card->addr, sizeof card->addr, err);
}

/* It comes off the wire. */
static bool card_read(const struct card *c, struct member *m)
{
    if (memcmp(c->magic, card_magic, sizeof c->magic) != 0 || c->port <= 0 ||
        c->port > 65535 || !memchr(c->addr, '\0', sizeof c->addr) ||
        !memchr(c->host_name, '\0', sizeof c->host_name))
        return false;
    memcpy(m->token, c->token, sizeof m->token);
    in_port_t port = htons((uint16_t)c->port);
    if (strchr(c->addr, ':')) {
        m->addr.six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port};
        return inet_pton(AF_INET6, c->addr, &m->addr.six.sin6_addr) == 1;
    }
    m->addr.four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port};
    return inet_pton(AF_INET, c->addr, &m->addr.four.sin_addr) == 1;
}

static void make(struct layout *l, const struct card *cards)
{
    OWNED uint64_t *hosts = xcalloc((size_t)l->size, sizeof *hosts);
    l->host_start = xcalloc((size_t)l->size + 1, sizeof *l->host_start);
    for (int r = 0; r < l->size; r++) {
        /* ranks of one host mostly follow each other: look at the neighbour first */
        int h = r > 0 && cards[r].host == cards[r - 1].host ? l->members[r - 1].host : 0;
        while (h < l->nhosts && hosts[h] != cards[r].host)
            h++;
        if (h == l->nhosts)
            hosts[l->nhosts++] = cards[r].host;
        l->members[r].host = h;
        l->members[r].local = l->host_start[h + 1]++; /* how many there are so far */
    }
    for (int h = 0; h < l->nhosts; h++)
        l->host_start[h + 1] += l->host_start[h];
    l->by_host = xcalloc((size_t)l->size, sizeof *l->by_host);
    l->host_names = xcalloc((size_t)l->nhosts, sizeof *l->host_names);
    for (int r = 0; r < l->size; r++) {
        const struct member *m = &l->members[r];
        l->by_host[l->host_start[m->host] + m->local] = r;
        memcpy(l->host_names[m->host], cards[r].host_name, sizeof cards[r].host_name);
    }
}

int layout_from_cards(struct layout *l, int rank, int size, const struct card *cards,
                      struct ddp_err *err)
{
    *l = (struct layout){.rank = rank, .size = size};
    l->members = xcalloc((size_t)size, sizeof *l->members);
    for (int r = 0; r < size; r++) {
        if (!card_read(&cards[r], &l->members[r])) {
            layout_finish(l);
            return err_set(err,
                           "rank %d has no address where others reach it (its own error "
                           "says why), or is of another version of the library",
                           r);
        }
    }
    make(l, cards);
    return 0;
}

void layout_single(struct layout *l)
{
    *l = (struct layout){.size = 1, .members = xcalloc(1, sizeof *l->members)};
    make(l, &(struct card){.host_name = "localhost"});
}

void layout_finish(struct layout *l)
{
    free(l->host_names);
    free(l->members);
    free(l->by_host);
    free(l->host_start);
    free(l->world_ranks);
    *l = (struct layout){0};
}

const int *layout_host(const struct layout *l, int h, int *n)
{
    *n = l->host_start[h + 1] - l->host_start[h];
    return l->by_host + l->host_start[h];
}

struct phrase layout_who(const struct layout *l, int rank)
{
    struct phrase who;
    const char *host = l->host_names[l->members[rank].host];
    if (l->world_ranks)
        snprintf(who.text, sizeof who.text, "rank %d (%d in all) on %s", rank,
                 l->world_ranks[rank], host);
    else
        snprintf(who.text, sizeof who.text, "rank %d on %s", rank, host);
    return who;
}

int layout_blame(const struct layout *l, int rank, const char *what, struct ddp_err *err)
{
    return err_set(err, "%s %s", layout_who(l, rank).text, what);
}
