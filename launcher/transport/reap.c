/* launcher/transport/reap.c - see reap.h
 *
 * In which order did children end? wait4() returns them in the order of creation, and
 * SIGCHLD is one signal for many. But each watched child has a pidfd in one epoll, whose
 * ready list is in the order of the ends. So the first cause is known even if several
 * ends are found at once.
 *
 * A table maps pids to watchers. A child could be reaped before it is watched (it ended
 * while its siblings were being started, and reap_now() was called), so reap_now() is
 * never called between a fork and its reap_watch(): both happen in one iteration of the
 * loop, and SIGCHLD is handled only between iterations.
 */
#include "launcher/transport/reap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
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

struct reap {
    struct loop *loop; /* borrowed */
    bool posted;       /* a pass at the end of this iteration */
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
    if (w->pidfd >= 0)
        close(w->pidfd);
    free(w);
}

/* Reap one ended child. */
static void reap_one(struct reap *r, pid_t pid, int64_t at_ns)
{
    int status;
    struct rusage used;
    struct watch *w;
    if (wait4(pid, &status, WNOHANG, &used) != pid)
        return;
    HASH_FIND_INT(r->watches, &pid, w);
    if (!w)
        return;
    reap_fn fn = w->fn;
    void *arg = w->arg;
    forget(r, w);
    fn(pid, status, at_ns, &used, arg);
}

/* Reap watched children in the order in which they ended. */
static void reap_in_order(struct reap *r, int64_t *at_ns)
{
    struct epoll_event ended[64];
    int n;
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
        struct watch *w;
        HASH_FIND_INT(r->watches, &any.si_pid, w);
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

void reap_watch(struct reap *r, pid_t pid, reap_fn fn, void *arg)
{
    struct watch *w = xcalloc(1, sizeof *w);
    *w = (struct watch){.pid = pid, .fn = fn, .arg = arg};
    w->pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by default */
    struct epoll_event ended = {.events = EPOLLIN | EPOLLONESHOT,
                                .data.u32 = (uint32_t)pid};
    if (w->pidfd >= 0)
        epoll_ctl(r->order, EPOLL_CTL_ADD, w->pidfd, &ended);
    HASH_ADD_INT(r->watches, pid, w);
}

void reap_forget(struct reap *r, pid_t pid)
{
    struct watch *w;
    HASH_FIND_INT(r->watches, &pid, w);
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
    r->ended = event_new(loop_base(loop), r->order, EV_READ | EV_PERSIST, on_child, r);
    r->sigchld = event_new(loop_base(loop), SIGCHLD, EV_SIGNAL | EV_PERSIST, on_child, r);
    if (r->order < 0 || !r->ended || !r->sigchld || event_add(r->ended, NULL) < 0 ||
        event_add(r->sigchld, NULL) < 0) {
        err_set(err, "cannot watch child processes");
        reap_destroy(r);
        return NULL;
    }
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
    if (r->ended)
        event_free(r->ended);
    if (r->order >= 0)
        close(r->order);
    loop_unpost(r->loop, r);
    if (r->sigchld)
        event_free(r->sigchld);
    free(r);
}
