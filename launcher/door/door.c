/* launcher/door/door.c - see door.h
 *
 * From a socket to its holder there is no short way: /proc/PID/fd of every candidate has
 * to be read. What is kept between calls, so that 256 ranks that connect one after the
 * other do not cost 256 looks at everything:
 *
 *   procs    all processes seen so far, by pid, with "ours" decided once: a descendant
 *            stays one (an orphan goes to the agent, which is a subreaper), and a
 * stranger never becomes one sockets  which of them held which socket, by inode
 *
 * A look reads the descriptors of those of our processes whose number of descriptors has
 * changed (st_size of /proc/PID/fd, Linux 6.2 and later; older kernels say 0, and all are
 * read). When that does not find the socket, /proc is read for new processes; and when
 * that does not either, everything is forgotten and looked at once more.
 *
 * What is remembered is never believed alone: the descriptor must still be that socket,
 * and the way up from its holder must still lead to the ancestor.
 */
#include "launcher/door/door.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/sockdiag.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uthash.h>

enum kinship { KIN_UNKNOWN, KIN_OURS, KIN_STRANGER };

struct proc {
    pid_t pid, parent;
    enum kinship kin;
    bool present; /* seen in this look */
    bool read;    /* its descriptors have been read */
    int64_t nfds; /* as it was then */
    UT_hash_handle hh;
};

struct held_socket {
    uint64_t inode;
    pid_t pid;
    int fd;
    UT_hash_handle hh;
};

struct door {
    pid_t ancestor;
    int netlink;                 /* owned, -1: none */
    struct proc *procs;          /* owned, by pid */
    struct held_socket *sockets; /* owned, by inode */
};

/* ---- processes ---- */

/* The parent of a process, 0 when it is gone. Field 4 of /proc/PID/stat, counted from the
 * last ')': a program may have any name. */
static pid_t parent_of(pid_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *p = strrchr(text, ')');
    int parent = 0;
    return p && sscanf(p + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

/* Straight from /proc, nothing remembered. The bound stops a chain that pids re-used
 * underneath us have closed to a ring. */
static bool leads_to(pid_t pid, pid_t ancestor)
{
    for (int up = 0; pid > 1 && up < 1000; up++) {
        if (pid == ancestor)
            return true;
        pid = parent_of(pid);
    }
    return false;
}

static struct proc *proc_find(struct door *d, pid_t pid)
{
    struct proc *p;
    HASH_FIND_INT(d->procs, &pid, p);
    return p;
}

static enum kinship kin_of(struct door *d, struct proc *p, int up)
{
    if (p->kin == KIN_UNKNOWN) {
        struct proc *parent = proc_find(d, p->parent);
        p->kin = p->pid == d->ancestor   ? KIN_OURS
                 : !parent || up == 1000 ? KIN_STRANGER
                                         : kin_of(d, parent, up + 1);
    }
    return p->kin;
}

static void drop_proc(struct door *d, struct proc *p)
{
    HASH_DEL(d->procs, p);
    free(p);
}

/* Bring `procs` up to date with /proc. */
static void look_for_processes(struct door *d)
{
    struct proc *p, *next;
    for (p = d->procs; p; p = p->hh.next)
        p->present = false;
    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        pid_t pid = atoi(e->d_name);
        p = proc_find(d, pid);
        if (!p) {
            p = xcalloc(1, sizeof *p);
            p->pid = pid;
            p->parent = parent_of(pid);
            HASH_ADD_INT(d->procs, pid, p);
        }
        p->present = true;
    }
    if (dir)
        closedir(dir);
    HASH_ITER (hh, d->procs, p, next) {
        if (!p->present)
            drop_proc(d, p);
    }
    for (p = d->procs; p; p = p->hh.next)
        kin_of(d, p, 0);
}

/* ---- sockets ---- */

static void remember(struct door *d, uint64_t inode, pid_t pid, int fd)
{
    struct held_socket *s;
    HASH_FIND(hh, d->sockets, &inode, sizeof inode, s);
    if (!s) {
        s = xcalloc(1, sizeof *s);
        s->inode = inode;
        HASH_ADD(hh, d->sockets, inode, sizeof s->inode, s);
    }
    s->pid = pid;
    s->fd = fd;
}

static bool socket_at(int dirfd, const char *name, uint64_t *inode)
{
    char target[64];
    ssize_t n = readlinkat(dirfd, name, target, sizeof target - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    unsigned long long number;
    if (sscanf(target, "socket:[%llu]", &number) != 1)
        return false;
    *inode = number;
    return true;
}

/* Read the descriptors of one process, unless their number says that nothing happened. */
static void look_at(struct door *d, struct proc *p)
{
    char path[32];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)p->pid);
    if (stat(path, &st) < 0 || (p->read && st.st_size > 0 && st.st_size == p->nfds))
        return;
    DIR *dir = opendir(path);
    if (!dir)
        return;
    uint64_t inode;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] != '.' && socket_at(dirfd(dir), e->d_name, &inode))
            remember(d, inode, p->pid, atoi(e->d_name));
    }
    closedir(dir);
    p->read = true;
    p->nfds = st.st_size;
}

static void look_at_ours(struct door *d)
{
    for (struct proc *p = d->procs; p; p = p->hh.next) {
        if (p->kin == KIN_OURS)
            look_at(d, p);
    }
}

static void forget(struct door *d)
{
    struct proc *p, *next;
    HASH_ITER (hh, d->procs, p, next)
        drop_proc(d, p);
    struct held_socket *s, *after;
    HASH_ITER (hh, d->sockets, s, after) {
        HASH_DEL(d->sockets, s);
        free(s);
    }
}

/* The one of our processes that holds the socket now, as far as we remember; or 0. */
static pid_t holder_known(struct door *d, uint64_t inode)
{
    struct held_socket *s;
    HASH_FIND(hh, d->sockets, &inode, sizeof inode, s);
    if (!s)
        return 0;
    char path[48];
    uint64_t now;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)s->pid, s->fd);
    bool holds = socket_at(AT_FDCWD, path, &now) && now == inode;
    return holds && leads_to(s->pid, d->ancestor) ? s->pid : 0;
}

/* Looks that cost more and more, until one of them finds it. */
static pid_t find_holder(struct door *d, uint64_t inode)
{
    pid_t holder = holder_known(d, inode);
    if (holder)
        return holder;
    look_at_ours(d);
    if ((holder = holder_known(d, inode)) != 0)
        return holder;
    look_for_processes(d);
    look_at_ours(d);
    if ((holder = holder_known(d, inode)) != 0)
        return holder;
    forget(d);
    look_for_processes(d);
    look_at_ours(d);
    return holder_known(d, inode);
}

int door_holder(struct door *d, const struct sockaddr *from, const struct sockaddr *to,
                pid_t *holder, struct ddp_err *err)
{
    struct sock_owner owner;
    if (sockdiag_find(d->netlink, from, to, &owner, err) < 0)
        return -1;
    if (owner.uid != geteuid())
        return err_set(err, "its socket belongs to user %u, the job to user %u",
                       (unsigned)owner.uid, (unsigned)geteuid());
    if (owner.inode == 0)
        return err_set(err, "its socket has been closed already");
    *holder = find_holder(d, owner.inode);
    if (*holder == 0)
        return err_set(err, "no process of this job holds its socket");
    return 0;
}

int door_check(struct door *d, const struct sockaddr *from, const struct sockaddr *to,
               struct ddp_err *err)
{
    pid_t unwanted;
    return door_holder(d, from, to, &unwanted, err);
}

/* ---- addresses ---- */

static bool same_addr(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET) {
        struct sockaddr_in x, y;
        memcpy(&x, a, sizeof x);
        memcpy(&y, b, sizeof y);
        return x.sin_addr.s_addr == y.sin_addr.s_addr;
    }
    struct sockaddr_in6 x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return IN6_ARE_ADDR_EQUAL(&x.sin6_addr, &y.sin6_addr);
}

bool door_is_local(const struct sockaddr *addr)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    if (addr->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, addr, sizeof in6);
        if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
            memcpy(&in.sin_addr, &in6.sin6_addr.s6_addr[12], 4);
            addr = (const struct sockaddr *)&in;
        }
    } else if (addr->sa_family == AF_INET) {
        memcpy(&in, addr, sizeof in);
    } else {
        return false;
    }
    if (addr->sa_family == AF_INET && (ntohl(in.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET)
        return true;
    struct ifaddrs *all;
    if (getifaddrs(&all) < 0)
        return false;
    bool local = false;
    for (struct ifaddrs *i = all; i && !local; i = i->ifa_next) {
        int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
        local = (family == AF_INET || family == AF_INET6) && same_addr(i->ifa_addr, addr);
    }
    freeifaddrs(all);
    return local;
}

/* ---- create, destroy ---- */

struct door *door_create(pid_t ancestor)
{
    struct door *d = xcalloc(1, sizeof *d);
    d->ancestor = ancestor;
    d->netlink = sockdiag_open();
    return d;
}

void door_destroy(struct door *d)
{
    if (!d)
        return;
    forget(d);
    if (d->netlink >= 0)
        close(d->netlink);
    free(d);
}
