/* launcher/spawn/reap.c - see reap.h
 *
 * A table from pid to who wants to know. A child can be reaped before anybody watches it
 * (it ended while its siblings were still being started, and somebody called reap_now()),
 * so reap_now() is never called between a fork and its reap_watch(): both happen in one
 * turn of the loop, and SIGCHLD is heard only between turns.
 */
#include "launcher/spawn/reap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <uthash.h>

struct watch {
    pid_t pid;
    reap_fn fn;
    void *arg;
    UT_hash_handle hh;
};

struct reap {
    struct loop *loop;     /* borrowed */
    bool posted;           /* a look at the end of this turn */
    struct event *sigchld; /* owned */
    struct watch *watches; /* owned: the table */
    void (*after)(void *arg);
    void *after_arg;
};

bool reap_now(struct reap *r)
{
    int64_t at_ns = now_ns();
    for (;;) {
        int status;
        struct rusage used;
        pid_t pid = wait4(-1, &status, WNOHANG, &used);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            return pid == 0;
        struct watch *w;
        HASH_FIND_INT(r->watches, &pid, w);
        if (!w)
            continue;
        HASH_DEL(r->watches, w);
        w->fn(pid, status, at_ns, &used, w->arg);
        free(w);
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

/* libevent calls once for each signal it has counted, and each wait4() looks at all
 * children: with hundreds of them that would be the most expensive thing we do. */
static void on_sigchld(evutil_socket_t sig, short what, void *arg)
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
    HASH_ADD_INT(r->watches, pid, w);
}

void reap_forget(struct reap *r, pid_t pid)
{
    struct watch *w;
    HASH_FIND_INT(r->watches, &pid, w);
    if (w) {
        HASH_DEL(r->watches, w);
        free(w);
    }
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
    r->sigchld =
        event_new(loop_base(loop), SIGCHLD, EV_SIGNAL | EV_PERSIST, on_sigchld, r);
    if (!r->sigchld || event_add(r->sigchld, NULL) < 0) {
        err_set(err, "cannot listen for SIGCHLD");
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
        HASH_DEL(r->watches, w);
        free(w);
    }
    loop_unpost(r->loop, r);
    if (r->sigchld)
        event_free(r->sigchld);
    free(r);
}
