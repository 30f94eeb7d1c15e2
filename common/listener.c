/* common/listener.c - see listener.h */
#define LOG_SUBSYS "start"
#include "common/listener.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/refusals.h"
#include "common/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* per turn of the loop, so that a flood does not hold up other events */
enum { ACCEPT_BURST = 64, PAUSE_MS = 200 };

struct listener {
    int fd;                          /* owned */
    struct event *readable, *resume; /* owned */
    const char *what;                /* borrowed */
    listener_fn fn;
    bool (*full)(void *arg); /* NULL: none */
    void *arg;
    struct refusals refusals;
    bool paused; /* a warning was logged */
    bool *gone;  /* during the callback: listener_destroy() sets it */
};

/* There is no descriptor for the next one: the owner frees one, which the loop's next
 * turn uses, or accepting pauses. */
static void make_room(struct listener *l)
{
    int error = errno;
    if (sock_await(l->fd, POLLIN, now_ms()) < 0)
        return; /* accept4() reports that also when none waits */
    if (l->full && l->full(l->arg))
        return;
    if (!l->paused)
        log_warn("connections to %s are delayed: %s (raise 'ulimit -n')", l->what,
                 strerror(error));
    l->paused = true;
    event_del(l->readable);
    loop_arm(l->resume, PAUSE_MS);
}

/* False: none came, or none can be accepted now. */
static bool accept_one(struct listener *l)
{
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    int fd =
        accept4(l->fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        l->fn(fd, (struct sockaddr *)&from, l->arg);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        make_room(l);
    return fd >= 0;
}

static void on_readable(evutil_socket_t nothing, short what, void *arg)
{
    struct listener *l = arg;
    bool gone = false;
    l->gone = &gone;
    for (int i = 0; i < ACCEPT_BURST && accept_one(l); i++) {
        if (gone)
            return;
    }
    l->gone = NULL;
}

static void on_resume(evutil_socket_t nothing, short what, void *arg)
{
    struct listener *l = arg;
    event_add(l->readable, NULL);
}

struct listener *listener_create(struct loop *loop, int fd, const char *what,
                                 listener_fn fn, void *arg)
{
    struct listener *l = xcalloc(1, sizeof *l);
    *l = (struct listener){.fd = fd, .what = what, .fn = fn, .arg = arg};
    l->readable = loop_watch(loop, fd, EV_READ | EV_PERSIST, on_readable, l);
    l->resume = loop_timer(loop, on_resume, l);
    return l;
}

void listener_on_full(struct listener *l, bool (*full)(void *arg))
{
    l->full = full;
}

void listener_destroy(struct listener *l)
{
    if (!l)
        return;
    if (l->gone)
        *l->gone = true;
    loop_close_fd(&l->readable, &l->fd);
    loop_free(l->resume);
    free(l);
}

int listener_fd(const struct listener *l)
{
    return l ? l->fd : -1;
}

void listener_refused(struct listener *l, const struct sockaddr *from, const char *why)
{
    OWNED char *line = refusals_line(&l->refusals, from, l->what, why);
    if (line)
        log_warn("%s", line);
}
