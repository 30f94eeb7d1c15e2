/* worker/group/layout.c - see layout.h
 *
 * A card is a few lines of text, so that the keys of the store can be read by eye. Since
 * it comes off the wire it is parsed strictly.
 */
#include "worker/group/layout.h"

#include "common/err.h"
#include "common/lookup.h"
#include "common/mem.h"
#include "common/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char card_magic[] = "ddpgroup 1";

static void random_hex(unsigned char *bytes, size_t n, char *hex)
{
    while (getrandom(bytes, n, 0) != (ssize_t)n)
        ; /* only interrupted by signals, and only before the pool is ready */
    for (size_t i = 0; hex && i < n; i++)
        sprintf(hex + 2 * i, "%02x", bytes[i]);
}

static int listen_unix(char *name, size_t size, struct ddp_err *err)
{
    unsigned char bytes[12];
    char hex[2 * sizeof bytes + 1];
    random_hex(bytes, sizeof bytes, hex);
    snprintf(name, size, "ddpgroup-%s", hex);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    memcpy(sa.sun_path + 1, name, strlen(name));
    socklen_t len =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, len) < 0 || listen(fd, 4096) < 0) {
        err_errno(err, "cannot listen for the ranks of this host");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

int listeners_open(struct listeners *listeners, struct ddp_err *err)
{
    *listeners = (struct listeners){.tcp_fd = -1, .unix_fd = -1};
    random_hex(listeners->token, sizeof listeners->token, NULL);
    listeners->unix_fd =
        listen_unix(listeners->unix_name, sizeof listeners->unix_name, err);
    if (listeners->unix_fd >= 0)
        listeners->tcp_fd = sock_listen(NULL, 0, &listeners->tcp_port, err);
    if (listeners->tcp_fd < 0) {
        listeners_close(listeners);
        return -1;
    }
    return 0;
}

void listeners_close(struct listeners *listeners)
{
    if (listeners->tcp_fd >= 0)
        close(listeners->tcp_fd);
    if (listeners->unix_fd >= 0)
        close(listeners->unix_fd);
    listeners->tcp_fd = listeners->unix_fd = -1;
}

/* What all ranks that can share memory with this one have in common, and no other has. */
static char *host_id(int rank, bool alone)
{
    char boot[64] = "", host[65] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (fscanf(f, "%63s", boot) != 1)
            boot[0] = '\0';
        fclose(f);
    }
    struct stat net = {0};
    if (stat("/proc/self/ns/net", &net) < 0)
        net.st_ino = 0;
    gethostname(host, sizeof host - 1);
    const char *given = getenv("DDP_HOST_ID");
    char *id = xasprintf("%s net %lu uid %u %s %.64s", boot, (unsigned long)net.st_ino,
                         (unsigned)geteuid(), host, given ? given : "");
    for (char *p = id; *p; p++) {
        if (*p == '\n')
            *p = ' ';
    }
    if (alone) {
        char *own = xasprintf("%s rank %d", id, rank);
        free(id);
        return own;
    }
    return id;
}

/* The address that this host would speak to `master` from. */
static bool route_addr(const char *master, int64_t deadline_ms, char *text, size_t size)
{
    struct addrinfo *list;
    if (lookup(master, "9", SOCK_DGRAM, deadline_ms, &list) != 0)
        return false;
    bool found = false;
    for (struct addrinfo *a = list; a && !found; a = a->ai_next) {
        struct sockaddr_storage own;
        socklen_t len = sizeof own;
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
            getsockname(fd, (struct sockaddr *)&own, &len) == 0) {
            sock_addr((struct sockaddr *)&own, text, size);
            found = true;
        }
        close(fd);
    }
    freeaddrinfo(list);
    return found;
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
        char *first = xstrndup(names, strcspn(names, ","));
        int rc = sock_interface_addr(first, text, size, err);
        free(first);
        return rc < 0 ? err_prefix(err, "GLOO_SOCKET_IFNAME") : 0;
    }
    bool found = master && route_addr(master, deadline_ms, text, size);
    if (found && (!sock_is_loopback(text) || sock_is_loopback(master)))
        return 0;
    char other[INET6_ADDRSTRLEN];
    if (sock_interface_addr(NULL, other, sizeof other, NULL) == 0)
        snprintf(text, size, "%s", other);
    else if (!found)
        snprintf(text, size, "127.0.0.1");
    return 0;
}

char *card_make_as(const char *host_id, const char *host_name, const char *addr,
                   const struct listeners *listeners)
{
    char token[2 * TOKEN_BYTES + 1];
    for (size_t i = 0; i < TOKEN_BYTES; i++)
        sprintf(token + 2 * i, "%02x", listeners->token[i]);
    return xasprintf("%s\n%s\n%s\n%s\n%d\n%s\n%s\n", card_magic, host_id, host_name, addr,
                     listeners->tcp_port, listeners->unix_name, token);
}

char *card_make(int rank, const struct listeners *listeners, const char *toward,
                int64_t deadline_ms, bool alone, struct ddp_err *err)
{
    char addr[INET6_ADDRSTRLEN], host[65] = "localhost";
    if (own_addr(toward, deadline_ms, addr, sizeof addr, err) < 0)
        return NULL;
    gethostname(host, sizeof host - 1);
    char *id = host_id(rank, alone), *card = card_make_as(id, host, addr, listeners);
    free(id);
    return card;
}

void card_copy(struct ddp_value *value, const char *card, size_t size)
{
    char *text = xcalloc(1, size + 1);
    memcpy(text, card, size);
    *value = (struct ddp_value){text, size};
}

/* Cut the next line off *text; NULL when there is none. */
static char *next_line(char **text)
{
    char *line = *text, *end = strchr(line, '\n');
    if (!end)
        return NULL;
    *end = '\0';
    *text = end + 1;
    return line;
}

static int card_read(struct member *m, const char **host, struct ddp_value *card)
{
    char *text = card->data, *line[7];
    if (strlen(text) != card->size)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(line); i++) {
        if (!(line[i] = next_line(&text)))
            return -1;
    }
    if (*text || strcmp(line[0], card_magic) != 0 || strlen(line[6]) != 2 * TOKEN_BYTES)
        return -1;
    *host = line[1];
    m->host_name = line[2];
    m->addr = line[3];
    m->port = atoi(line[4]);
    m->unix_name = line[5];
    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        if (sscanf(line[6] + 2 * i, "%2hhx", &m->token[i]) != 1)
            return -1;
    }
    bool sound = m->port > 0 && m->port < 65536 && strlen(m->unix_name) < 40;
    return sound ? 0 : -1;
}

static void number_hosts(struct layout *l, const char *const *hosts)
{
    /* ranks of one host mostly follow each other: look at the neighbour first */
    const char **names = xcalloc((size_t)l->size, sizeof *names);
    for (int r = 0; r < l->size; r++) {
        int h = r > 0 && strcmp(hosts[r], hosts[r - 1]) == 0 ? l->members[r - 1].host : 0;
        while (h < l->nhosts && strcmp(names[h], hosts[r]) != 0)
            h++;
        if (h == l->nhosts)
            names[l->nhosts++] = hosts[r];
        l->members[r].host = h;
    }
    free(names);
    l->by_host = xcalloc((size_t)l->size, sizeof *l->by_host);
    l->host_start = xcalloc((size_t)l->nhosts + 1, sizeof *l->host_start);
    for (int r = 0; r < l->size; r++)
        l->host_start[l->members[r].host + 1]++;
    for (int h = 0; h < l->nhosts; h++)
        l->host_start[h + 1] += l->host_start[h];
    int *filled = xcalloc((size_t)l->nhosts, sizeof *filled);
    for (int r = 0; r < l->size; r++) {
        struct member *m = &l->members[r];
        m->local = filled[m->host]++;
        l->by_host[l->host_start[m->host] + m->local] = r;
    }
    free(filled);
}

/* The member whose texts are the same: the first one of its host, for most. */
static const struct member *alike(const struct layout *l, const struct member *m)
{
    const struct member *first = &l->members[l->by_host[l->host_start[m->host]]];
    bool same =
        strcmp(m->host_name, first->host_name) == 0 && strcmp(m->addr, first->addr) == 0;
    return same ? first : m;
}

static const char *keep(char *texts, size_t *at, const char *text)
{
    size_t size = strlen(text) + 1;
    char *to = texts ? texts + *at : NULL;
    if (to)
        memcpy(to, text, size);
    *at += size;
    return to;
}

/* What members point to, in one block: first its size, then its content. */
static size_t keep_texts(struct layout *l, char *texts)
{
    size_t at = 0;
    for (int r = 0; r < l->size; r++) {
        struct member *m = &l->members[r];
        const struct member *like = alike(l, m);
        bool here = m->host == l->members[l->rank].host;
        const char *unix_name = here ? keep(texts, &at, m->unix_name) : NULL;
        const char *host_name = like == m ? keep(texts, &at, m->host_name) : NULL;
        const char *addr = like == m ? keep(texts, &at, m->addr) : NULL;
        if (!texts)
            continue;
        m->unix_name = unix_name;
        m->host_name = like == m ? host_name : like->host_name;
        m->addr = like == m ? addr : like->addr;
    }
    return at;
}

int layout_from_cards(struct layout *l, int rank, int size, struct ddp_value *cards,
                      struct ddp_err *err)
{
    size_t n = (size_t)size;
    int rc = 0;
    *l = (struct layout){.rank = rank, .size = size};
    l->members = xcalloc(n, sizeof *l->members);
    const char **hosts = xcalloc(n, sizeof *hosts);
    for (int r = 0; r < size && rc == 0; r++) {
        rc = card_read(&l->members[r], &hosts[r], &cards[r]);
        if (rc < 0)
            err_set(err, "rank %d has given something else than its address", r);
    }
    if (rc == 0) {
        number_hosts(l, hosts);
        l->texts = xcalloc(1, keep_texts(l, NULL));
        keep_texts(l, l->texts);
    } else {
        layout_finish(l);
    }
    free(hosts);
    ddp_values_free(cards, n);
    free(cards);
    return rc;
}

void layout_single(struct layout *l)
{
    *l = (struct layout){.size = 1, .nhosts = 1};
    l->members = xcalloc(1, sizeof *l->members);
    l->members->host_name = l->members->addr = l->members->unix_name = "";
    l->by_host = xcalloc(1, sizeof *l->by_host);
    l->host_start = xcalloc(2, sizeof *l->host_start);
    l->host_start[1] = 1;
}

void layout_finish(struct layout *l)
{
    free(l->texts);
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

const char *layout_who(const struct layout *l, int rank, char *text, size_t size)
{
    const char *host = l->members[rank].host_name;
    if (l->world_ranks)
        snprintf(text, size, "rank %d (%d in all) on %s", rank, l->world_ranks[rank],
                 host);
    else
        snprintf(text, size, "rank %d on %s", rank, host);
    return text;
}
