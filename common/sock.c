/* common/sock.c - see sock.h */
#include "common/sock.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/lookup.h"
#include "common/mem.h"
#include "common/port_user.h"
#include "common/strv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TURN_MS = 1000 }; /* of a wait, so that a stop is noticed */

int sock_await(int fd, short events, int64_t deadline_ms)
{
    return sock_await_extend(fd, events, &deadline_ms);
}

int sock_await_extend(int fd, short events, int64_t *deadline_ms)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int64_t now = now_ms(), left = *deadline_ms - now;
        int64_t turn = left > TURN_MS ? TURN_MS : left > 0 ? left : 0;
        int n = poll(&p, 1, (int)turn);
        limit_extend(deadline_ms, now, TURN_MS);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
        if (n == 0 && now_ms() >= *deadline_ms) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
}

int sock_read_all(int fd, void *p, size_t n, int64_t deadline_ms)
{
    for (unsigned char *to = p; n > 0;) {
        ssize_t got =
            sock_await_extend(fd, POLLIN, &deadline_ms) < 0 ? -1 : read(fd, to, n);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got == 0)
            errno = ECONNRESET;
        if (got <= 0)
            return -1;
        to += got;
        n -= (size_t)got;
    }
    return 0;
}

int sock_write_all(int fd, const void *p, size_t n, int64_t deadline_ms)
{
    for (const unsigned char *from = p; n > 0;) {
        if (sock_await_extend(fd, POLLOUT, &deadline_ms) < 0)
            return -1;
        ssize_t sent = send(fd, from, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == ENOTSOCK)
            sent = write(fd, from, n);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (sent < 0)
            return -1;
        from += sent;
        n -= (size_t)sent;
    }
    return 0;
}

int sock_send_fds(int fd, const int *fds, size_t n)
{
    char what = 'r';
    union {
        char room[CMSG_SPACE(SOCK_FDS * sizeof(int))];
        struct cmsghdr head;
    } u = {{0}};
    struct iovec iov = {&what, 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = u.room,
                       .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    u.head.cmsg_level = SOL_SOCKET;
    u.head.cmsg_type = SCM_RIGHTS;
    u.head.cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(&u.head), fds, n * sizeof(int));
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : -1;
}

int sock_recv_fd(int fd)
{
    char what;
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr head;
    } u;
    struct iovec iov = {&what, 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = u.room,
                       .msg_controllen = sizeof u.room};
    int got = -1;
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (n >= 0)
        errno = m.msg_flags & MSG_CTRUNC ? EMFILE : EBADMSG;
    if (n == 1 && CMSG_FIRSTHDR(&m) && u.head.cmsg_level == SOL_SOCKET &&
        u.head.cmsg_type == SCM_RIGHTS && u.head.cmsg_len == CMSG_LEN(sizeof got))
        memcpy(&got, CMSG_DATA(&u.head), sizeof got);
    return got;
}

int sock_set_nonblock(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -1;
    return fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

void sock_set_nodelay(int fd)
{
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

void sock_set_keepalive(int fd, int idle_s, int interval_s, int count)
{
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

bool sock_was_reset(int fd)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &size) < 0;
}

bool sock_unanswered(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0)
        return true;
    return info.tcpi_unacked > 0 || info.tcpi_probes > 0;
}

/* Bound, and listening if `backlog` > 0. */
static int listen_on(const struct sockaddr *sa, socklen_t len, bool dual, int backlog)
{
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (sa->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){!dual}, sizeof(int));
    if (bind(fd, sa, len) < 0 || (backlog > 0 && listen(fd, backlog) < 0)) {
        close_fd(&fd);
        return -1;
    }
    return fd;
}

enum { BACKLOG = 1 << 20 }; /* the kernel limits it to somaxconn */

static int listen_anywhere(int port, int backlog)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
                              .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = listen_on((struct sockaddr *)&v6, sizeof v6, true, backlog);
    if (fd < 0 && errno != EADDRINUSE && errno != EACCES)
        fd = listen_on((struct sockaddr *)&v4, sizeof v4, false, backlog);
    return fd;
}

/* By errno. Who uses a port that is in use is named as well. */
static int listen_error(const char *addr, int port, struct ddp_err *err)
{
    struct ddp_err where = {""};
    char user[64] = "";
    if (addr)
        err_set(&where, "'%s' ", addr);
    if (errno != EADDRINUSE)
        return err_errno(err, "cannot listen on %sport %d", where.text, port);
    port_user(port, user, sizeof user);
    errno = EADDRINUSE;
    return err_set(err, "cannot listen on %sport %d: %s%s%s", where.text, port,
                   strerror(EADDRINUSE), user[0] ? " by " : "", user);
}

enum { LISTEN_MS = 10000 }; /* to resolve the name */

static int listen_named(const char *addr, int port, struct ddp_err *err)
{
    struct addrinfo *list;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = lookup(addr, service, SOCK_STREAM, now_ms() + LISTEN_MS, &list);
    if (rc != 0)
        return err_set(err, "cannot listen on '%s': %s", addr, lookup_error(rc));
    int fd = -1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = listen_on(a->ai_addr, a->ai_addrlen, false, BACKLOG);
    int saved = errno;
    freeaddrinfo(list);
    errno = saved;
    return fd < 0 ? listen_error(addr, port, err) : fd;
}

/* Closes `fd` if its port cannot be determined. */
static int with_port(int fd, int *port, struct ddp_err *err)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0) {
        close(fd);
        return err_errno(err, "cannot name the listening socket");
    }
    *port = sock_port((struct sockaddr *)&ss);
    return fd;
}

int sock_listen(const char *addr, int port, int *bound, struct ddp_err *err)
{
    int fd = addr ? listen_named(addr, port, err) : listen_anywhere(port, BACKLOG);
    if (fd < 0)
        return addr ? -1 : listen_error(NULL, port, err);
    return bound ? with_port(fd, bound, err) : fd;
}

int sock_reserve(int *port, struct ddp_err *err)
{
    int fd = listen_anywhere(0, 0);
    return fd < 0 ? err_errno(err, "no port is free") : with_port(fd, port, err);
}

/* One attempt at one address; no time left counts as a timeout. */
static int connect_one(const struct addrinfo *a, int64_t *deadline_ms)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int error = 0;
    if (connect(fd, a->ai_addr, a->ai_addrlen) < 0)
        error = errno;
    if (error == EINPROGRESS || error == EINTR) {
        socklen_t len = sizeof error;
        if (sock_await_extend(fd, POLLOUT, deadline_ms) < 0)
            error = errno;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    }
    if (error) {
        close(fd);
        errno = error;
        return -1;
    }
    sock_set_nodelay(fd);
    return fd;
}

/* An address whose packets are dropped must leave time for the others. */
static int connect_list(const struct addrinfo *list, int64_t *deadline_ms)
{
    int fd = -1, naddrs = 0;
    for (const struct addrinfo *a = list; a; a = a->ai_next)
        naddrs++;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        int64_t now = now_ms(), share = now + (*deadline_ms - now) / naddrs--,
                end = share;
        fd = connect_one(a, &end);
        *deadline_ms += end - share;
    }
    return fd;
}

int sock_connect(const char *host, int port, int64_t deadline_ms, bool retry,
                 struct ddp_err *err)
{
    return sock_connect_extend(host, port, &deadline_ms, retry, err);
}

int sock_connect_extend(const char *host, int port, int64_t *deadline_ms, bool retry,
                        struct ddp_err *err)
{
    struct addrinfo *list;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int rc = lookup(host, service, SOCK_STREAM, *deadline_ms, &list);
    if (rc != 0) {
        errno = ENXIO;
        return err_set(err, "cannot resolve '%s': %s", host, lookup_error(rc));
    }
    int fd = connect_list(list, deadline_ms);
    for (int64_t pause = 5; fd < 0 && retry; pause = pause * 2 > 250 ? 250 : pause * 2) {
        int64_t now = now_ms(), left = *deadline_ms - now;
        if (left <= 0 || (errno != ECONNREFUSED && errno != ECONNRESET))
            break;
        int64_t ms = left < pause ? left : pause;
        int why = errno;
        sleep_ms(ms);
        limit_extend(deadline_ms, now, TURN_MS);
        fd = connect_list(list, deadline_ms);
        if (fd < 0 && errno == ETIMEDOUT)
            errno = why; /* the connection error rather than the timeout */
    }
    int saved = errno;
    freeaddrinfo(list);
    errno = saved;
    if (fd < 0)
        return err_errno(err, "cannot connect to '%s' port %d", host, port);
    return fd;
}

static bool container_interface(const char *name)
{
    static const char *const patterns[] = {"docker*", "virbr*", "veth*",
                                           "br-*",    "cni*",   "lxc*"};
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    }
    return false;
}

static bool interface_fits(const struct ifaddrs *i, const char *name, int family)
{
    if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP))
        return false;
    if (family == AF_INET6) {
        const struct sockaddr_in6 *a =
            (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr))
            return false;
    }
    if (name)
        return strcmp(name, i->ifa_name) == 0;
    return !(i->ifa_flags & IFF_LOOPBACK) && !container_interface(i->ifa_name);
}

int sock_interface_addr(const char *name, char *text, size_t size, struct ddp_err *err)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *list;
    if (getifaddrs(&list) < 0)
        return err_errno(err, "cannot list the network interfaces");
    bool found = false;
    for (size_t f = 0; f < ARRAY_LEN(families) && !found; f++) {
        for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
            if (interface_fits(i, name, families[f])) {
                sock_addr(i->ifa_addr, text, size);
                found = true;
            }
        }
    }
    freeifaddrs(list);
    if (found)
        return 0;
    return name
               ? err_set(err,
                         "network interface '%s' is not there, not up, or has no address",
                         name)
               : err_set(err, "no network interface is up besides loopback");
}

void sock_own_addrs(bool reachable, struct strv *out)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) < 0)
        return;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        char text[INET6_ADDRSTRLEN];
        int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) ||
            (reachable && ((i->ifa_flags & IFF_LOOPBACK) || !(i->ifa_flags & IFF_UP))))
            continue;
        sock_addr(i->ifa_addr, text, sizeof text);
        strv_push(out, text);
    }
    freeifaddrs(list);
}

enum sock_own sock_own_addr(const char *name, int64_t deadline_ms, char *text,
                            size_t size)
{
    struct addrinfo *list;
    SCOPED(strv_finish) struct strv all = {0};
    enum sock_own found = SOCK_FOREIGN;
    if (lookup(name, NULL, SOCK_STREAM, deadline_ms, &list) != 0)
        return SOCK_UNKNOWN;
    for (const struct addrinfo *a = list; a && found != SOCK_OWN; a = a->ai_next) {
        char one[INET6_ADDRSTRLEN];
        sock_addr(a->ai_addr, one, sizeof one);
        bool loopback = sock_is_loopback(one);
        if (!loopback && all.n == 0)
            sock_own_addrs(false, &all);
        if (!loopback && !strv_has(&all, one, strlen(one)))
            continue;
        if (!loopback || found == SOCK_FOREIGN)
            snprintf(text, size, "%s", one);
        found = loopback ? SOCK_LOOPBACK : SOCK_OWN;
    }
    freeaddrinfo(list);
    return found;
}
