/* launcher/transport/reap.c - see reap.h
 *
 * In which order did children end? wait4() returns them in the order of creation, and
 * SIGCHLD is one signal for many. But each watched child has a pidfd in one epoll, whose
 * ready list is in the order of the ends. So the first cause is known even if several
 * ends are found at once.
 *
 * A table maps pids to watchers. A child must not be reaped before it is watched (it
 * ended while its siblings were being started). In the loop's thread, fork and
 * reap_watch() happen in one iteration, and reap_now() is not called in between; for
 * children of another thread the caller holds back what is not watched, and their order
 * is kept in `early`.
 */
#include "launcher/transport/reap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uthash.h>

struct watch {
    pid_t pid;
    int pidfd; /* owned, in `order`; -1: not supported (before 5.3) */
    reap_fn fn;
    void *arg;
    UT_hash_handle hh;
};

struct ended {
    pid_t pid;
    int64_t at_ns;
};

struct reap {
    struct loop *loop;   /* borrowed */
    int held;            /* reap_hold() without reap_release() */
    struct ended *early; /* owned: ended before they were watched, in order */
    size_t nearly;
    bool posted; /* a pass at the end of this iteration */
    struct event *sigchld,
        *ended;            /* owned: a child without, or with, a pidfd has ended */
    struct watch *watches; /* owned: the table */
    int order;             /* owned: an epoll */
    void (*after)(void *arg);
    void *after_arg;
};

static void forget(struct reap *r, struct watch *w)
{
    HASH_DEL(r->watches, w);
    loop_close_later(r->loop, &w->pidfd);
    free(w);
}

static struct watch *find(const struct reap *r, pid_t pid)
{
    struct watch *w;
    HASH_FIND_INT(r->watches, &pid, w);
    return w;
}

/* Reap one ended child. */
static void reap_one(struct reap *r, pid_t pid, int64_t at_ns)
{
    int status;
    struct rusage used;
    struct watch *w = find(r, pid);
    if (!w && r->held > 0) {
        r->early = xrealloc(r->early, r->nearly + 1, sizeof *r->early);
        r->early[r->nearly++] = (struct ended){pid, at_ns};
        return;
    }
    if (wait4(pid, &status, WNOHANG, &used) != pid)
        return;
    if (!w)
        return;
    reap_fn fn = w->fn;
    void *arg = w->arg;
    forget(r, w);
    fn(pid, status, at_ns, &used, arg);
}

/* Those that are watched now; later ones stay in the list. */
static void reap_early(struct reap *r)
{
    struct ended *list = r->early;
    size_t n = r->nearly;
    r->early = NULL;
    r->nearly = 0;
    for (size_t i = 0; i < n; i++)
        reap_one(r, list[i].pid, list[i].at_ns);
    free(list);
}

/* Reap watched children in the order in which they ended. */
static void reap_in_order(struct reap *r, int64_t *at_ns)
{
    struct epoll_event ended[64];
    int n;
    reap_early(r);
    while ((n = epoll_wait(r->order, ended, ARRAY_LEN(ended), 0)) > 0) {
        for (int i = 0; i < n; i++)
            reap_one(r, (pid_t)ended[i].data.u32, (*at_ns)++);
    }
}

bool reap_now(struct reap *r)
{
    int64_t at_ns = now_ns();
    for (;;) {
        siginfo_t any = {0};
        reap_in_order(r, &at_ns);
        int rc = waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT);
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc < 0 || any.si_pid == 0)
            return rc == 0;
        const struct watch *w = find(r, any.si_pid);
        if (!w && r->held > 0)
            return true;
        if (w && w->pidfd >= 0) /* ended meanwhile: its order is known, too */
            reap_in_order(r, &at_ns);
        reap_one(r, any.si_pid, at_ns);
    }
}

static void on_turn_end(void *arg)
{
    struct reap *r = arg;
    r->posted = false;
    reap_now(r);
    if (r->after)
        r->after(r->after_arg);
}

/* libevent calls this once per counted signal, and each wait4() checks all children: with
 * hundreds of them that would be the largest cost. The pidfds wake the loop as well: a
 * signal may be handled late, as ThreadSanitizer does, and it is needed for children
 * without a pidfd only. */
static void on_child(evutil_socket_t fd, short what, void *arg)
{
    struct reap *r = arg;
    if (!r->posted)
        loop_post(r->loop, on_turn_end, r);
    r->posted = true;
}

void reap_order(int order_fd, pid_t pid, int pidfd)
{
    struct epoll_event ended = {.events = EPOLLIN | EPOLLONESHOT,
                                .data.u32 = (uint32_t)pid};
    if (pidfd >= 0)
        epoll_ctl(order_fd, EPOLL_CTL_ADD, pidfd, &ended);
}

int reap_order_fd(const struct reap *r)
{
    return fcntl(r->order, F_DUPFD_CLOEXEC, 0);
}

void reap_watch_started(struct reap *r, pid_t pid, int pidfd, reap_fn fn, void *arg)
{
    struct watch *w = xcalloc(1, sizeof *w);
    *w = (struct watch){.pid = pid, .pidfd = pidfd, .fn = fn, .arg = arg};
    HASH_ADD_INT(r->watches, pid, w);
    if (r->nearly > 0)
        on_child(-1, 0, r); /* it may be one of them */
}

void reap_watch(struct reap *r, pid_t pid, reap_fn fn, void *arg)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by default */
    reap_order(r->order, pid, pidfd);
    reap_watch_started(r, pid, pidfd, fn, arg);
}

void reap_hold(struct reap *r)
{
    r->held++;
}

void reap_release(struct reap *r)
{
    r->held--;
    on_child(-1, 0, r); /* some may have ended meanwhile */
}

void reap_forget(struct reap *r, pid_t pid)
{
    struct watch *w = find(r, pid);
    if (w)
        forget(r, w);
}

void reap_after(struct reap *r, void (*fn)(void *arg), void *arg)
{
    r->after = fn;
    r->after_arg = arg;
}

struct reap *reap_create(struct loop *loop, struct ddp_err *err)
{
    struct reap *r = xcalloc(1, sizeof *r);
    r->loop = loop;
    r->order = epoll_create1(EPOLL_CLOEXEC);
    if (r->order < 0) {
        err_errno(err, "cannot watch child processes");
        reap_destroy(r);
        return NULL;
    }
    r->ended = loop_watch(loop, r->order, EV_READ | EV_PERSIST, on_child, r);
    r->sigchld = loop_watch(loop, SIGCHLD, EV_SIGNAL | EV_PERSIST, on_child, r);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
        err_errno(err, "cannot become a subreaper");
        reap_destroy(r);
        return NULL;
    }
    return r;
}

void reap_destroy(struct reap *r)
{
    if (!r)
        return;
    struct watch *w, *next;
    HASH_ITER (hh, r->watches, w, next) {
        forget(r, w);
    }
    loop_close_fd(&r->ended, &r->order);
    loop_unpost(r->loop, r);
    loop_free(r->sigchld);
    free(r->early);
    free(r);
}
