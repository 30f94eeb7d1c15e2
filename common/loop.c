/* common/loop.c - see loop.h
 *
 * libevent 2.1 has no hook between two polls, so there are two queues, arrays processed
 * by one event, which the first post of an iteration activates. Functions posted while it
 * runs are run in the same pass.
 *
 * Events that posted functions give up are freed when the queues are empty: no callback
 * runs meanwhile, and what these functions send need not wait until the kernel has
 * forgotten hundreds of descriptors.
 */
#include "common/loop.h"

#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CLOSE_MS = 10 };

struct posted {
    void (*fn)(void *arg); /* NULL: cancelled by loop_unpost() */
    void *arg;
};

struct queue {
    struct posted *list; /* owned */
    size_t n, room, done;
};

struct loop {
    struct event_base *base; /* owned */
    struct event *deferred;  /* owned: runs the queues */
    struct queue first, last;
    bool running;              /* the queues */
    struct event *close_timer; /* owned */
    int *closing;              /* owned: for loop_close_fd_later() */
    size_t nclosing, room_closing;
    struct event **unfreed; /* owned, as the events: freed when the queues have run */
    size_t nunfreed, room_unfreed;
    bool stopped;
    int code;
};

static bool run_one(struct queue *q)
{
    if (q->done == q->n)
        return false;
    struct posted p = q->list[q->done];
    q->list[q->done++].fn = NULL;
    if (p.fn)
        p.fn(p.arg);
    return true;
}

static void run_queues(evutil_socket_t fd, short what, void *arg)
{
    struct loop *l = arg;
    l->running = true;
    while (run_one(&l->first) || run_one(&l->last))
        ;
    l->first.n = l->first.done = l->last.n = l->last.done = 0;
    l->running = false;
    while (l->nunfreed > 0)
        loop_free(l->unfreed[--l->nunfreed]);
}

static void post(struct loop *l, struct queue *q, void (*fn)(void *arg), void *arg)
{
    q->list = xroom(q->list, q->n, &q->room, sizeof *q->list);
    if (l->first.n + l->last.n == 0)
        event_active(l->deferred, 0, 0);
    q->list[q->n++] = (struct posted){fn, arg};
}

void loop_post(struct loop *l, void (*fn)(void *arg), void *arg)
{
    post(l, &l->first, fn, arg);
}

void loop_post_last(struct loop *l, void (*fn)(void *arg), void *arg)
{
    post(l, &l->last, fn, arg);
}

static void unpost(struct queue *q, const void *arg)
{
    for (size_t i = q->done; i < q->n; i++) {
        if (q->list[i].arg == arg)
            q->list[i].fn = NULL;
    }
}

void loop_unpost(struct loop *l, const void *arg)
{
    unpost(&l->first, arg);
    unpost(&l->last, arg);
}

struct event_base *loop_base(struct loop *l)
{
    return l->base;
}

int loop_run(struct loop *l)
{
    while (!l->stopped && event_base_loop(l->base, EVLOOP_ONCE) == 0)
        ;
    run_queues(-1, 0, l); /* run what the last iteration has posted */
    return l->code;
}

void loop_stop(struct loop *l, int code)
{
    if (!l->stopped) {
        l->stopped = true;
        l->code = code;
        event_base_loopbreak(l->base);
    }
}

static void close_all(struct loop *l)
{
    for (size_t i = 0; i < l->nclosing; i++)
        close(l->closing[i]);
    l->nclosing = 0;
}

static void on_close_timer(evutil_socket_t fd, short what, void *arg)
{
    close_all(arg);
}

void loop_close_fd_later(struct loop *l, struct event **e, int *fd)
{
    if (*e && l->running) {
        l->unfreed =
            xroom(l->unfreed, l->nunfreed, &l->room_unfreed, sizeof(struct event *));
        l->unfreed[l->nunfreed++] = *e;
    } else {
        loop_free(*e);
    }
    *e = NULL;
    loop_close_later(l, fd);
}

void loop_close_later(struct loop *l, int *fd)
{
    if (*fd < 0)
        return;
    l->closing = xroom(l->closing, l->nclosing, &l->room_closing, sizeof *l->closing);
    if (l->nclosing == 0)
        loop_arm(l->close_timer, CLOSE_MS);
    l->closing[l->nclosing++] = *fd;
    *fd = -1;
}

/* libevent needs three, and may abort with fewer */
static bool has_descriptors(void)
{
    int fds[3] = {eventfd(0, EFD_CLOEXEC)};
    for (size_t i = 1; i < ARRAY_LEN(fds); i++)
        fds[i] = fds[i - 1] < 0 ? -1 : fcntl(fds[0], F_DUPFD_CLOEXEC, 0);
    bool has = fds[ARRAY_LEN(fds) - 1] >= 0;
    for (size_t i = 0; i < ARRAY_LEN(fds) && fds[i] >= 0; i++)
        close(fds[i]);
    return has;
}

/* EVENT_* of the environment are not for us: each costs four system calls. */
static struct event_base *create_base(void)
{
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;
    if (config && event_config_set_flag(config, EVENT_BASE_FLAG_IGNORE_ENV) == 0)
        base = event_base_new_with_config(config);
    if (config)
        event_config_free(config);
    return base;
}

struct loop *loop_create(struct ddp_err *err)
{
    if (!has_descriptors()) {
        err_errno(err, "cannot make an event loop");
        return NULL;
    }
    struct loop *l = xcalloc(1, sizeof *l);
    l->base = create_base();
    if (!l->base) {
        err_set(err, "cannot make an event loop");
        loop_destroy(l);
        return NULL;
    }
    l->deferred = loop_event(l, -1, 0, run_queues, l);
    l->close_timer = loop_timer(l, on_close_timer, l);
    return l;
}

void loop_destroy(struct loop *l)
{
    if (!l)
        return;
    close_all(l);
    free(l->closing);
    free(l->unfreed);
    loop_free(l->close_timer);
    loop_free(l->deferred);
    if (l->base)
        event_base_free(l->base);
    free(l->first.list);
    free(l->last.list);
    free(l);
}

static void give_up(void)
{
    fprintf(stderr, "%s: cannot watch a descriptor or a time: %s\n",
            program_invocation_short_name, strerror(errno));
    abort();
}

struct event *loop_event(struct loop *l, int fd, short what, event_callback_fn fn,
                         void *arg)
{
    struct event *e = event_new(l->base, fd, what, fn, arg);
    if (!e)
        give_up();
    return e;
}

struct event *loop_watch(struct loop *l, int fd, short what, event_callback_fn fn,
                         void *arg)
{
    struct event *e = loop_event(l, fd, what, fn, arg);
    if (event_add(e, NULL) < 0)
        give_up();
    return e;
}

struct event *loop_timer(struct loop *l, event_callback_fn fn, void *arg)
{
    return loop_event(l, -1, 0, fn, arg);
}

void loop_arm(struct event *timer, int64_t ms)
{
    if (event_add(timer, &(struct timeval){ms / 1000, ms % 1000 * 1000}) < 0)
        give_up();
}

void loop_free(struct event *e)
{
    if (e)
        event_free(e);
}

void loop_close_fd(struct event **e, int *fd)
{
    loop_free(*e);
    *e = NULL;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
