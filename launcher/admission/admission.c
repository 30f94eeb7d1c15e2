/* launcher/admission/admission.c - see admission.h
 *
 * The kernel has no query from a socket to its holder: /proc/PID/fd of every candidate
 * must be read. Cached between calls, so that 256 ranks that connect one after the other
 * do not cost 256 full scans:
 *
 *   procs    all processes seen so far, by pid. Whether one is ours is decided once: a
 *            descendant stays one (orphans are reparented to the agent, a subreaper), and
 *            a stranger never becomes one
 *   sockets  the process and descriptor that held a socket, by inode
 *
 * /proc/PID/fd of each of our processes is kept open: it never refers to another process
 * that reuses the pid, so the ancestry need not be checked again.
 *
 * Most connections are the newest descriptor of a rank, so the highest descriptors of
 * each of our processes are tried first (st_size of /proc/PID/fd is their count since
 * Linux 6.2). A process that opens a connection per request (Horovod: 10 N^2 of them)
 * gets about the same descriptor each time, so that is tried before.
 *
 * A scan reads the descriptors of those of our processes whose descriptor count has
 * changed (older kernels report 0, and all are read). If it does not find the socket,
 * /proc is read for new processes; then the cache is dropped and everything scanned once
 * more. The cost of another user's connections is bounded: after a failed scan, further
 * ones of that user are refused for PAUSE_MS without a scan.
 *
 * A cached holder that was read more than FRESH_MS ago is verified: its descriptor must
 * still be that socket. (Until then the kernel cannot have given the inode to another.)
 *
 * The socket's user does not matter if the holder is found: ranks may have changed theirs
 * (setpriv, mapped ids). The kernel hides the descriptors of processes that are not
 * dumpable (programs of mode 0711), and of users other than the agent's. If the job has
 * such a process of the socket's user, and no visible process outside the job holds the
 * socket, that process is taken as the holder, for two kinds of users: our own and root,
 * whose processes can trace us anyway; and ids mapped into a user namespace of our
 * process, which no other user has.
 */
#include "launcher/admission/admission.h"

#include "common/ancestry.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "common/sock.h"
#include "common/sockdiag.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uthash.h>

enum membership { KIN_UNKNOWN, KIN_OURS, KIN_STRANGER };

struct proc {
    pid_t pid, parent;
    enum membership kin;
    bool present; /* seen in this scan */
    bool read;    /* its descriptors have been read */
    bool hidden;  /* some of them cannot be read */
    int dir;      /* owned: its /proc/PID/fd; -1: not open */
    int last_fd;  /* of the socket found last; 0: none */
    int64_t nfds; /* descriptor count at that time, or at the last look at the newest */
    UT_hash_handle hh;
};

struct held_socket {
    uint64_t inode;
    pid_t pid;
    int fd;
    int64_t read_ms; /* when it was seen there */
    UT_hash_handle hh;
};

enum { FRESH_MS = 1000 };

/* for how long (ms), and for how many users, requests are refused without a scan */
enum { PAUSE_MS = 50, PAUSES = 16 };

enum { SOCKETS_MAX = 1 << 16 }; /* cached; then the cache is emptied */
enum { DIRS_MAX = 1024 };       /* beyond it /proc/PID is opened by number each time */

struct admission {
    pid_t ancestor;
    struct pause {
        uid_t uid;
        int64_t until_ms;
    } pauses[PAUSES];
    int ndirs;          /* open directories of `procs` */
    int netlink;        /* owned, -1: none */
    pid_t last;         /* the process that was found by its newest socket last */
    bool asked;         /* `netlink` is open, or there is none */
    struct proc *procs; /* owned, by pid */
    struct held_socket *sockets; /* owned, by inode */
};

/* ---- processes --------------------------------------------------------------------- */

static struct proc *proc_find(struct admission *a, pid_t pid)
{
    struct proc *p;
    HASH_FIND_INT(a->procs, &pid, p);
    return p;
}

static enum membership kin_of(struct admission *a, struct proc *p, int up)
{
    if (p->kin == KIN_UNKNOWN) {
        struct proc *parent = proc_find(a, p->parent);
        p->kin = p->pid == a->ancestor   ? KIN_OURS
                 : !parent || up == 1000 ? KIN_STRANGER
                                         : kin_of(a, parent, up + 1);
    }
    return p->kin;
}

static struct proc *proc_add(struct admission *a, pid_t pid, pid_t parent)
{
    struct proc *p = xcalloc(1, sizeof *p);
    *p = (struct proc){.pid = pid, .parent = parent, .dir = -1};
    HASH_ADD_INT(a->procs, pid, p);
    return p;
}

static void drop_proc(struct admission *a, struct proc *p)
{
    HASH_DEL(a->procs, p);
    if (p->dir >= 0) {
        close(p->dir);
        a->ndirs--;
    }
    free(p);
}

/* Keep /proc/PID of one of our processes open. Unless `sure`, verify afterwards that the
 * pid was not reused. */
static void proc_keep(struct admission *a, struct proc *p, bool sure)
{
    char path[32];
    if (p->dir >= 0 || a->ndirs >= DIRS_MAX)
        return;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)p->pid);
    p->dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    a->ndirs += p->dir >= 0;
    if (!sure && !ancestry_leads(p->pid, a->ancestor))
        drop_proc(a, p);
}

static void add_children(struct admission *a, const char *task)
{
    char path[64];
    int pid;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)a->ancestor, task);
    SCOPED(close_file) FILE *f = fopen(path, "re");
    while (f && fscanf(f, "%d", &pid) == 1) {
        struct proc *p = proc_find(a, pid);
        if (p)
            continue;
        p = proc_add(a, pid, a->ancestor);
        p->kin = KIN_OURS;
        proc_keep(a, p, a->ancestor == getpid()); /* only this process reaps it */
    }
}

/* The ancestor's own children, which most ranks are: those of each of its threads. */
static void scan_children(struct admission *a)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)a->ancestor);
    SCOPED(close_folder) DIR *tasks = opendir(path);
    for (const struct dirent *e; tasks && (e = readdir(tasks)) != NULL;) {
        if (e->d_name[0] != '.')
            add_children(a, e->d_name);
    }
}

/* Update `procs` from /proc. */
static void scan_processes(struct admission *a)
{
    struct proc *p, *next;
    for (p = a->procs; p; p = p->hh.next)
        p->present = false;
    SCOPED(close_folder) DIR *dir = opendir("/proc");
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        pid_t pid = atoi(e->d_name);
        p = proc_find(a, pid);
        if (!p)
            p = proc_add(a, pid, ancestry_parent(pid, NULL));
        p->present = true;
    }
    HASH_ITER (hh, a->procs, p, next) {
        if (!p->present)
            drop_proc(a, p);
    }
    HASH_ITER (hh, a->procs, p, next) {
        if (kin_of(a, p, 0) == KIN_OURS)
            proc_keep(a, p, false);
    }
}

/* ---- sockets ----------------------------------------------------------------------- */

static void drop_sockets(struct admission *a)
{
    struct held_socket *s, *after;
    HASH_ITER (hh, a->sockets, s, after) {
        HASH_DEL(a->sockets, s);
        free(s);
    }
}

static void cache_socket(struct admission *a, uint64_t inode, pid_t pid, int fd)
{
    struct held_socket *s;
    if (HASH_COUNT(a->sockets) >= SOCKETS_MAX)
        drop_sockets(a);
    HASH_FIND(hh, a->sockets, &inode, sizeof inode, s);
    if (!s) {
        s = xcalloc(1, sizeof *s);
        s->inode = inode;
        HASH_ADD(hh, a->sockets, inode, sizeof s->inode, s);
    }
    s->pid = pid;
    s->fd = fd;
    s->read_ms = now_ms();
}

/* The inode of the socket that a link in /proc/PID/fd leads to. A duplicate of the
 * descriptor (pidfd_getfd) would tell it in half the time, but its close() flushes a file
 * on NFS or FUSE, and waits for a server that does not answer. */
static bool socket_at(int dirfd, const char *name, uint64_t *inode)
{
    char target[64];
    ssize_t n = readlinkat(dirfd, name, target, sizeof target - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    if (strncmp(target, "socket:[", 8) != 0)
        return false;
    *inode = strtoull(target + 8, NULL, 10);
    return true;
}

/* A directory and a path relative to it for a descriptor of a process, or with -1 for the
 * folder of all: below the open /proc/PID/fd, else AT_FDCWD and the full path. */
static int proc_path(const struct proc *p, char name[48], int number)
{
    int n = p->dir >= 0 ? 0 : snprintf(name, 48, "/proc/%d/fd/", (int)p->pid);
    if (number < 0)
        snprintf(name + n, 48 - (size_t)n, ".");
    else
        snprintf(name + n, 48 - (size_t)n, "%d", number);
    return p->dir >= 0 ? p->dir : AT_FDCWD;
}

/* The number of its descriptors; 0 before Linux 6.2; -1: it has ended, or hides them. */
static int64_t count_descriptors(const struct proc *p)
{
    char name[48];
    struct stat st;
    int at = proc_path(p, name, -1);
    int rc = p->dir >= 0 ? fstat(at, &st) : fstatat(at, name, &st, 0);
    return rc < 0 ? -1 : st.st_size;
}

/* Read the newest descriptors, if their count has changed: as many as have been added,
 * and not more than NEWEST. Without gaps the last one's number is the count; a rank's
 * descriptor for PMI (CHILD_EXTRA_FD) makes one gap. */
static void read_newest(struct admission *a, struct proc *p)
{
    enum { NEWEST = 2 };
    char name[48];
    int64_t count = count_descriptors(p);
    if (count < 0 || count == p->nfds)
        return;
    int64_t added = count - p->nfds, seen = 0;
    int64_t wanted = added > 0 && added < NEWEST ? added : NEWEST;
    p->read = false;
    p->nfds = count;
    for (int fd = (int)count - 1; fd > 2 && fd >= count - 1 - NEWEST && seen < wanted;
         fd--) {
        uint64_t inode;
        errno = 0;
        int at = proc_path(p, name, fd);
        if (socket_at(at, name, &inode))
            cache_socket(a, inode, p->pid, fd);
        seen += errno != ENOENT;
    }
}

/* Read all descriptors of one process, unless their count is unchanged. */
static void read_descriptors(struct admission *a, struct proc *p)
{
    char name[48];
    int64_t count = count_descriptors(p);
    if (count < 0 || (p->read && count > 0 && count == p->nfds))
        return;
    int at = proc_path(p, name, -1);
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    p->hidden = fd < 0 && errno == EACCES;
    SCOPED(close_folder) DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return;
    uint64_t inode;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        errno = 0;
        if (socket_at(dirfd(dir), e->d_name, &inode))
            cache_socket(a, inode, p->pid, atoi(e->d_name));
        else
            p->hidden |= errno == EACCES;
    }
    p->read = true;
    p->nfds = count;
}

static void read_all(struct admission *a, enum membership kin)
{
    for (struct proc *p = a->procs; p; p = p->hh.next) {
        if (p->kin == kin)
            read_descriptors(a, p);
    }
}

static void drop_cache(struct admission *a)
{
    struct proc *p, *next;
    HASH_ITER (hh, a->procs, p, next)
        drop_proc(a, p);
    drop_sockets(a);
}

/* Our process that holds the socket according to the cache, verified; or 0. */
static pid_t cached_holder(struct admission *a, uint64_t inode)
{
    struct held_socket *s;
    HASH_FIND(hh, a->sockets, &inode, sizeof inode, s);
    if (!s)
        return 0;
    struct proc *p = proc_find(a, s->pid);
    if (!p || p->kin != KIN_OURS)
        return 0;
    if (now_ms() - s->read_ms < FRESH_MS)
        return s->pid;
    char name[48];
    uint64_t now;
    int at = proc_path(p, name, s->fd);
    if (!socket_at(at, name, &now) || now != inode)
        return 0;
    if (p->dir < 0 && !ancestry_leads(s->pid, a->ancestor))
        return 0;
    p->last_fd = s->fd;
    return s->pid;
}

/* Our process that has the socket where its last one was, or near that; or 0. */
static pid_t repeated_holder(struct admission *a, uint64_t inode)
{
    enum { TRIES = 17 };
    for (int i = 0; i < TRIES; i++) { /* 0, 1, -1, 2, ... further */
        int more = i % 2 ? i / 2 + 1 : -(i / 2);
        for (struct proc *p = a->procs; p; p = p->hh.next) {
            char name[48];
            uint64_t now;
            if (p->last_fd == 0 || p->dir < 0)
                continue;
            int at = proc_path(p, name, p->last_fd + more);
            if (socket_at(at, name, &now) && now == inode) {
                p->last_fd += more;
                return p->pid;
            }
        }
    }
    return 0;
}

/* Our process that has it among its newest descriptors; or 0. Begins behind the one that
 * was found last: of ranks that connect together each is looked at once. */
static pid_t newest_holder(struct admission *a, uint64_t inode)
{
    struct proc *p = proc_find(a, a->last);
    for (unsigned n = HASH_COUNT(a->procs); n > 0; n--) {
        p = p && p->hh.next ? p->hh.next : a->procs;
        if (p->kin != KIN_OURS)
            continue;
        read_newest(a, p);
        if (cached_holder(a, inode) != 0)
            return a->last = p->pid;
    }
    return 0;
}

/* Increasingly expensive scans, until one finds the holder. */
static pid_t find_holder(struct admission *a, uint64_t inode)
{
    pid_t holder = cached_holder(a, inode);
    if (!holder)
        holder = repeated_holder(a, inode);
    if (!holder)
        holder = newest_holder(a, inode);
    if (!holder) {
        scan_children(a);
        holder = newest_holder(a, inode);
    }
    for (int scan = 0; !holder && scan < 3; scan++) {
        if (scan == 2)
            drop_cache(a);
        if (scan > 0)
            scan_processes(a);
        read_all(a, KIN_OURS);
        holder = cached_holder(a, inode);
    }
    return holder;
}

/* Is `uid` one of the process's user ids? */
static bool runs_as(pid_t pid, uid_t uid)
{
    char path[32], line[256];
    unsigned ids[4];
    bool yes = false;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    SCOPED(close_file) FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Uid: %u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]) == 4) {
            yes = ids[0] == uid || ids[1] == uid || ids[2] == uid || ids[3] == uid;
            break;
        }
    }
    return yes;
}

/* Is the process in another user namespace? Its ids were given to the user who created
 * that (subuid(5)). */
static bool has_mapped_ids(pid_t pid)
{
    char path[32], theirs[4096], ours[4096];
    snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
    return read_start(path, theirs, sizeof theirs) > 0 &&
           read_start("/proc/self/uid_map", ours, sizeof ours) > 0 &&
           strcmp(theirs, ours) != 0;
}

/* One of our processes with hidden descriptors that may hold the socket; 0: none. Call
 * after find_holder(). */
static pid_t find_hidden(struct admission *a, const struct sock_owner *owner)
{
    pid_t hidden = 0;
    bool may_trace_us = owner->uid == geteuid() || owner->uid == 0;
    for (const struct proc *p = a->procs; p && !hidden; p = p->hh.next) {
        if (p->kin == KIN_OURS && p->hidden && runs_as(p->pid, owner->uid) &&
            (may_trace_us || has_mapped_ids(p->pid)))
            hidden = p->pid;
    }
    if (!hidden)
        return 0;
    struct held_socket *elsewhere;
    read_all(a, KIN_STRANGER);
    HASH_FIND(hh, a->sockets, &owner->inode, sizeof owner->inode, elsewhere);
    return elsewhere ? 0 : hidden;
}

static struct pause *pause_of(struct admission *a, uid_t uid)
{
    struct pause *oldest = &a->pauses[0];
    for (struct pause *p = a->pauses; p < a->pauses + PAUSES; p++) {
        if (p->until_ms > 0 && p->uid == uid)
            return p;
        if (p->until_ms < oldest->until_ms)
            oldest = p;
    }
    *oldest = (struct pause){.uid = uid};
    return oldest;
}

static int find(struct admission *a, const struct sockaddr *from,
                const struct sockaddr *to, pid_t *holder, struct ddp_err *err)
{
    struct sock_owner owner;
    if (!a->asked) /* most jobs never ask: opening costs as much as starting a rank */
        a->netlink = sockdiag_open();
    a->asked = true;
    if (sockdiag_find(a->netlink, from, to, &owner, err) < 0)
        return errno == ENOENT ? ADMISSION_ELSEWHERE : -1;
    if (owner.inode == 0)
        return err_set(err, "its socket has been closed already");
    bool own = owner.uid == geteuid();
    struct pause *pause = own ? NULL : pause_of(a, owner.uid);
    pid_t found = 0;
    if (!pause || now_ms() >= pause->until_ms) {
        found = find_holder(a, owner.inode);
        if (found == 0)
            found = find_hidden(a, &owner);
    }
    if (holder)
        *holder = found;
    if (found != 0)
        return 0;
    if (own)
        return err_set(err, "no process of this job holds its socket");
    pause->until_ms = now_ms() + PAUSE_MS;
    return err_set(err, "its socket belongs to user %u and to no process of this job",
                   (unsigned)owner.uid);
}

int admission_check(struct admission *a, const struct sockaddr *from,
                    const struct sockaddr *to, struct ddp_err *err)
{
    return find(a, from, to, NULL, err);
}

int admission_accepted(struct admission *a, int fd, const struct sockaddr *from,
                       pid_t *holder, struct ddp_err *err)
{
    struct sockaddr_storage to;
    socklen_t size = sizeof to;
    if (getsockname(fd, (struct sockaddr *)&to, &size) < 0)
        return err_errno(err, "its local address cannot be read");
    int rc = find(a, from, (struct sockaddr *)&to, holder, err);
    return rc == 0 && sock_was_reset(fd)
               ? err_set(err, "its socket has been closed already")
               : rc;
}

/* ---- create, destroy --------------------------------------------------------------- */

struct admission *admission_create(pid_t ancestor)
{
    struct admission *a = xcalloc(1, sizeof *a);
    a->ancestor = ancestor;
    a->netlink = -1;
    return a;
}

void admission_destroy(struct admission *a)
{
    if (!a)
        return;
    drop_cache(a);
    close_fd(&a->netlink);
    free(a);
}
