/* launcher/plugins/diagnose/sockets.c - see sockets.h
 *
 * The kernel's table of connections names the inode of each, and /proc/PID/fd has the
 * inodes of a process. The table is that of a network namespace: it is read once for all
 * ranks of a host that are in the same one. It costs 4 ms of CPU however few there are,
 * as the kernel walks its hash table, so a socket is asked first of which protocol it is.
 */
#include "launcher/plugins/diagnose/sockets.h"

#include "common/json.h"
#include "common/mem.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

/* Listed per process: idle ones, and in all. Read: all processes of a namespace. */
enum { IDLE_MAX = 16, LISTED_MAX = 64, FDS_MAX = 1 << 16, LISTENING = 10 };
enum { LOST = 4 }; /* retransmits: in some seconds, by the kernel's doubled intervals */

static const char *const states[] = {
    "?",         "established", "connecting",
    "accepting", "closing",     "half closed",
    "waits",     "closed",      "closed by the other end",
    "closing",   "listening",   "closing"};

struct owner {
    unsigned long long inode;
    size_t process; /* index */
};

struct owners {
    struct owner *v; /* owned, by inode */
    size_t n, room;
    bool four, six; /* some are of IPv4, of IPv6 */
};

static int by_inode(const void *a, const void *b)
{
    unsigned long long x = ((const struct owner *)a)->inode,
                       y = ((const struct owner *)b)->inode;
    return (x > y) - (x < y);
}

static void add_owned(pid_t pid, size_t process, struct owners *all)
{
    static const char prefix[] = "socket:[";
    char path[64], name[32], link[64], protocol[16];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    SCOPED(close_folder) DIR *dir = opendir(path);
    for (struct dirent *d; dir && all->n < FDS_MAX && (d = readdir(dir));) {
        snprintf(name, sizeof name, "fd/%.20s", d->d_name);
        if (!proc_link(pid, name, link, sizeof link) ||
            strncmp(link, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
        ssize_t n = getxattr(path, "system.sockprotoname", protocol, sizeof protocol - 1);
        protocol[n > 0 ? n : 0] = '\0';
        bool four = strcmp(protocol, "TCP") == 0, six = strcmp(protocol, "TCPv6") == 0;
        if (n > 0 && !four && !six)
            continue;
        all->four |= four || n <= 0;
        all->six |= six || n <= 0;
        all->v = xroom(all->v, all->n, &all->room, sizeof *all->v);
        all->v[all->n++] =
            (struct owner){strtoull(link + strlen(prefix), NULL, 10), process};
    }
}

/* "0100007F:1F90", and in 32 digits IPv6, whose words are of host order, too. */
static void print_end(const char *hex, char *text, size_t size)
{
    char word[9] = "", addr[INET6_ADDRSTRLEN] = "?";
    struct in6_addr a = {0};
    size_t digits = strcspn(hex, ":");
    for (size_t i = 0; i < digits / 8 && i < 4; i++) {
        memcpy(word, hex + i * 8, 8);
        a.s6_addr32[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    bool mapped = digits == 32 && IN6_IS_ADDR_V4MAPPED(&a);
    bool six = digits == 32 && !mapped;
    inet_ntop(six ? AF_INET6 : AF_INET, mapped ? &a.s6_addr32[3] : a.s6_addr32, addr,
              sizeof addr);
    snprintf(text, size, six ? "[%s]:%lu" : "%s:%lu", addr,
             strtoul(hex + digits + (hex[digits] == ':'), NULL, 16));
}

static void set_count(json_t *o, const char *key, unsigned long count)
{
    if (count > 0)
        json_object_set_new(o, key, json_integer((json_int_t)count));
}

struct line {
    char local[48], peer[48];
    unsigned state;
    unsigned long unsent, unread, retransmits;
    unsigned long long inode;
};

static void add_socket(const struct line *l, json_t *out)
{
    char local[64], peer[64];
    json_t *list = json_object_get(out, "sockets");
    size_t n = json_array_size(list);
    bool idle = l->unsent == 0 && l->unread == 0 && l->retransmits == 0;
    if (n >= (idle ? IDLE_MAX : LISTED_MAX)) {
        json_int_t more = int_of(out, "more_sockets");
        json_object_set_new(out, "more_sockets", json_integer(more + 1));
        return;
    }
    print_end(l->local, local, sizeof local);
    print_end(l->peer, peer, sizeof peer);
    const char *state = states[l->state < ARRAY_LEN(states) ? l->state : 0];
    json_t *o =
        json_pack("{s:s, s:s, s:s}", "state", state, "local", local, "peer", peer);
    set_count(o, l->state == LISTENING ? "unaccepted" : "unread", l->unread);
    set_count(o, "unsent", l->unsent);
    set_count(o, "retransmits", l->retransmits);
    json_array_append_new(list, o);
}

static void read_table(pid_t pid, const char *name, const struct owners *all,
                       const struct described *list)
{
    char path[64], text[512];
    struct line l;
    snprintf(path, sizeof path, "/proc/%d/net/%s", (int)pid, name);
    SCOPED(close_file) FILE *f = fopen(path, "re");
    while (f && fgets(text, sizeof text, f)) {
        if (sscanf(text, " %*[0-9]: %47s %47s %x %lx:%lx %*s %lx %*u %*d %llu", l.local,
                   l.peer, &l.state, &l.unsent, &l.unread, &l.retransmits, &l.inode) != 7)
            continue;
        struct owner key = {.inode = l.inode};
        const struct owner *o = bsearch(&key, all->v, all->n, sizeof *all->v, by_inode);
        if (o)
            add_socket(&l, list[o->process].out);
    }
}

void sockets_describe(const struct described *list, size_t n)
{
    OWNED bool *done = xcalloc(n + 1, sizeof *done);
    for (size_t first = 0; first < n; first++) {
        struct owners all = {0};
        char ours[64], its[64];
        if (done[first] || !proc_link(list[first].pid, "ns/net", ours, sizeof ours))
            continue;
        for (size_t i = first; i < n; i++) {
            if (done[i] || !proc_link(list[i].pid, "ns/net", its, sizeof its) ||
                strcmp(ours, its) != 0)
                continue;
            done[i] = true;
            json_object_set_new(list[i].out, "sockets", json_array());
            add_owned(list[i].pid, i, &all);
        }
        if (all.n > 0)
            qsort(all.v, all.n, sizeof *all.v, by_inode);
        if (all.four)
            read_table(list[first].pid, "tcp", &all, list);
        if (all.six)
            read_table(list[first].pid, "tcp6", &all, list);
        free(all.v);
    }
}

/* --- the other ends ----------------------------------------------------------------- */

/* A connection's name, from one of its ends; loopback addresses are of that host only. */
static char *name_of(const json_t *rank, const char *from, const char *to)
{
    bool own = strncmp(from, "127.", 4) == 0 || strncmp(from, "[::1]", 5) == 0;
    const char *host = text_of(rank, "host");
    return xasprintf("%s %s %s", own && host ? host : "", from, to);
}

void sockets_match(json_t *ranks)
{
    json_t *ends = json_object(), *rank, *s;
    for (int look = 0; look < 2; look++) { /* first all names are set */
        size_t i, k;
        json_array_foreach (ranks, i, rank) {
            json_array_foreach (json_object_get(rank, "sockets"), k, s) {
                const char *local = text_of(s, "local"), *peer = text_of(s, "peer");
                if (!local || !peer)
                    continue;
                OWNED char *name =
                    look ? name_of(rank, peer, local) : name_of(rank, local, peer);
                if (look)
                    json_object_set(s, "rank", json_object_get(ends, name));
                else
                    json_object_set(ends, name, json_object_get(rank, "rank"));
            }
        }
    }
    json_decref(ends);
}

json_t *sockets_lost(const json_t *ranks)
{
    json_t *list = json_array(), *rank, *s, *worst = NULL, *of = NULL;
    json_int_t most = LOST - 1;
    size_t i, k;
    json_array_foreach (ranks, i, rank) {
        json_array_foreach (json_object_get(rank, "sockets"), k, s) {
            json_int_t n = int_of(s, "retransmits");
            if (n > most) {
                most = n;
                worst = s;
                of = rank;
            }
        }
    }
    if (!worst)
        return list;
    bool connects = is_text(worst, "state", states[2]),
         named = json_object_get(worst, "rank");
    OWNED char *to =
        named ? xasprintf(" (rank %lld)", (long long)int_of(worst, "rank")) : xstrdup("");
    json_array_append_new(
        list,
        json_sprintf(
            "rank %lld on %s gets no answer from %s%s, %s (%lld retransmits): %s?",
            (long long)int_of(of, "rank"), text_or(of, "host", "?"),
            text_or(worst, "peer", "?"), to,
            connects ? "to which it connects" : "which has not confirmed what it sent",
            (long long)most,
            connects ? "a firewall" : "a firewall, or an MTU that is too large"));
    return list;
}
