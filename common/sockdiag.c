/* common/sockdiag.c - see sockdiag.h
 *
 * An exact SOCK_DIAG_BY_FAMILY query (sock_diag(7), linux/inet_diag.h) costs one hash
 * lookup in the kernel, however many sockets there are. PyTorch reaches IPv4 addresses
 * through AF_INET6 sockets; the exact query finds those as AF_INET too, whereas the
 * tables below /proc/net list them as "::ffff:a.b.c.d" in tcp6 only.
 */
#include "common/sockdiag.h"

#include "common/err.h"
#include "common/scoped.h"
#include "common/sock_addr.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

struct end {
    int family;
    uint32_t addr[4]; /* network order; IPv4 in addr[0] */
    uint16_t port;    /* network order */
    uint32_t scope;   /* interface of a link-local address */
};

static struct end end_of(const struct sockaddr *sa)
{
    struct end e = {.family = sa->sa_family};
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof in);
        e.addr[0] = in.sin_addr.s_addr;
        e.port = in.sin_port;
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof in6);
        memcpy(e.addr, &in6.sin6_addr, sizeof e.addr);
        e.port = in6.sin6_port;
        e.scope = in6.sin6_scope_id;
        if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr))
            e = (struct end){AF_INET, {e.addr[3]}, e.port, 0};
    }
    return e;
}

/* ---- netlink ----------------------------------------------------------------------- */

struct query {
    struct nlmsghdr head;
    struct inet_diag_req_v2 ask;
};

static struct query query_make(const struct end *from, const struct end *to)
{
    static uint32_t nth; /* identifies late replies */
    struct query q = {
        .head = {.nlmsg_len = sizeof q,
                 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                 .nlmsg_flags = NLM_F_REQUEST,
                 .nlmsg_seq = ++nth},
        .ask = {.sdiag_family = (uint8_t)from->family,
                .sdiag_protocol = IPPROTO_TCP,
                .idiag_states = ~0U,
                .id = {.idiag_sport = from->port,
                       .idiag_dport = to->port,
                       .idiag_if = from->scope ? from->scope : to->scope,
                       .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}},
    };
    memcpy(q.ask.id.idiag_src, from->addr, sizeof from->addr);
    memcpy(q.ask.id.idiag_dst, to->addr, sizeof to->addr);
    return q;
}

/* Without the kernel module tcp_diag every connection is reported as absent. This asks
 * for all sockets in none of the states: an empty list if the module is there. */
bool sockdiag_serves_tcp(int netlink)
{
    struct query q = query_make(&(struct end){.family = AF_INET}, &(struct end){0});
    struct {
        struct nlmsghdr head;
        int error;
        char rest[512];
    } reply;
    q.head.nlmsg_flags |= NLM_F_DUMP;
    q.ask.idiag_states = 0;
    return send(netlink, &q, sizeof q, 0) == (ssize_t)sizeof q &&
           recv(netlink, &reply, sizeof reply, 0) >= (ssize_t)NLMSG_LENGTH(sizeof(int)) &&
           reply.head.nlmsg_type == NLMSG_DONE && reply.error == 0;
}

int sockdiag_open(void)
{
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    struct timeval second = {1, 0}; /* the reply is ready when send() returns */
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    if (sockdiag_serves_tcp(fd))
        return fd;
    close(fd);
    return -1;
}

/* 1: found, 0: no such connection, -1: netlink failed. */
static int ask_netlink(int netlink, const struct end *from, const struct end *to,
                       struct sock_owner *owner)
{
    struct query q = query_make(from, to);
    union {
        struct nlmsghdr head;
        char bytes[1024];
    } reply;
    if (send(netlink, &q, sizeof q, 0) != (ssize_t)sizeof q)
        return -1;
    do {
        ssize_t n = recv(netlink, &reply, sizeof reply, 0);
        if (n < (ssize_t)sizeof reply.head)
            return -1;
        if (reply.head.nlmsg_len > (size_t)n)
            return -1;
    } while (reply.head.nlmsg_seq != q.head.nlmsg_seq);
    if (reply.head.nlmsg_type == NLMSG_ERROR) {
        const struct nlmsgerr *e = NLMSG_DATA(&reply.head);
        return e->error == -ENOENT ? 0 : -1;
    }
    if (reply.head.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
        reply.head.nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
        return -1;
    const struct inet_diag_msg *m = NLMSG_DATA(&reply.head);
    if (m->id.idiag_dport != to->port) /* the listener on that port, not the connection */
        return 0;
    *owner = (struct sock_owner){m->idiag_uid, m->idiag_inode, m->idiag_state};
    return 1;
}

/* ---- /proc/net --------------------------------------------------------------------- */

/* An end in the tables' format: the address in words of host order, then the port. */
static void end_text(const struct end *e, bool mapped, char text[48])
{
    unsigned port = ntohs(e->port);
    if (e->family == AF_INET6)
        snprintf(text, 48, "%08X%08X%08X%08X:%04X", e->addr[0], e->addr[1], e->addr[2],
                 e->addr[3], port);
    else if (mapped)
        snprintf(text, 48, "0000000000000000%08X%08X:%04X", htonl(0xffff), e->addr[0],
                 port);
    else
        snprintf(text, 48, "%08X:%04X", e->addr[0], port);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The socket whose ends are, or end with, these texts (proc_net_tcp.rst). 1: found, 0: no
 * such socket, or no such table; -1: it cannot be read. */
static int read_table(const char *path, const char *local_end, const char *remote_end,
                      struct sock_owner *owner)
{
    SCOPED(close_file) FILE *f = fopen(path, "re");
    bool found = false;
    if (!f)
        return errno == ENOENT ? 0 : -1;
    char line[512], local[48], remote[48];
    while (!found && fgets(line, sizeof line, f)) {
        unsigned state, uid;
        unsigned long inode;
        found = sscanf(line, " %*[0-9]: %47s %47s %x %*s %*s %*s %u %*u %lu", local,
                       remote, &state, &uid, &inode) == 5 &&
                ends_with(local, local_end) && ends_with(remote, remote_end);
        if (found)
            *owner = (struct sock_owner){uid, inode, state};
    }
    return found;
}

static int read_tables(const struct end *from, const struct end *to,
                       struct sock_owner *owner)
{
    char local[48], remote[48];
    bool ipv4 = from->family == AF_INET;
    end_text(from, false, local);
    end_text(to, false, remote);
    int found = ipv4 ? read_table("/proc/self/net/tcp", local, remote, owner) : 0;
    if (found != 0)
        return found;
    end_text(from, ipv4, local);
    end_text(to, ipv4, remote);
    return read_table("/proc/self/net/tcp6", local, remote, owner);
}

bool sockdiag_find_listener(int port, struct sock_owner *owner)
{
    char local[8];
    snprintf(local, sizeof local, ":%04X", (unsigned)port & 0xffff);
    /* only a listening socket has port 0 as its remote end */
    return read_table("/proc/self/net/tcp", local, ":0000", owner) > 0 ||
           read_table("/proc/self/net/tcp6", local, ":0000", owner) > 0;
}

int sockdiag_find(int netlink, const struct sockaddr *from, const struct sockaddr *to,
                  struct sock_owner *owner, struct ddp_err *err)
{
    struct end local = end_of(from), remote = end_of(to);
    int found = 0;
    if (local.family == remote.family && local.family != AF_UNSPEC) {
        found = netlink >= 0 ? ask_netlink(netlink, &local, &remote, owner) : -1;
        if (found < 0)
            found = read_tables(&local, &remote, owner);
    }
    if (found == 1 && owner->state != TCP_SYN_SENT)
        return 0;
    if (found < 0)
        return err_errno(err, "cannot read the kernel's list of connections");
    char a[64], b[64];
    sock_name(from, a, sizeof a);
    sock_name(to, b, sizeof b);
    errno = ENOENT;
    return err_set(err, "no connection from %s to %s on this machine", a, b);
}
