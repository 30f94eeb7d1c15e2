/* launcher/control/control.c - see control.h */
#define LOG_SUBSYS "job"
#include "launcher/control/control.h"

#include "common/listener.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/control/rundir.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

/* ms before the socket is made; connections at a time; bytes of a request; bytes that a
 * peer may leave unread before it is dropped */
enum { LISTEN_MS = 50, PEERS_MAX = 32, REQUEST_MAX = 64 << 10, UNREAD_MAX = 64 << 20 };

struct peer {
    struct control *c; /* borrowed */
    struct peer *next;
    uint32_t number;
    bool closing;
    struct bufferevent *io; /* owned */
};

struct handler {
    const char *what; /* borrowed */
    control_fn fn;
    void *arg;
    struct handler *next;
};

struct control {
    struct loop *loop;         /* borrowed */
    const char *id;            /* borrowed */
    struct handler *handlers;  /* owned */
    struct peer *peers;        /* owned */
    uint32_t last;             /* number given to a peer */
    struct event *timer;       /* owned */
    struct listener *listener; /* owned; NULL: does not listen */
    struct sockaddr_un sa;     /* of the listener */
};

static struct peer *find(const struct control *c, uint32_t number)
{
    struct peer *p;
    LL_SEARCH_SCALAR(c->peers, p, number, number);
    return p && !p->closing ? p : NULL;
}

static void peer_free(struct peer *p)
{
    bufferevent_free(p->io);
    free(p);
}

static void on_drop(void *arg)
{
    struct peer *p = arg;
    LL_DELETE(p->c->peers, p);
    peer_free(p);
}

static void drop(struct peer *p)
{
    if (p->closing)
        return;
    p->closing = true;
    bufferevent_disable(p->io, EV_READ | EV_WRITE);
    loop_post(p->c->loop, on_drop, p);
}

static void handle(struct peer *p, const char *line, size_t size)
{
    json_auto_t *request = json_loadb(line, size, 0, NULL);
    const char *what = json_string_value(json_object_get(request, "do"));
    struct handler *h = NULL;
    if (what)
        LL_FOREACH (p->c->handlers, h) {
            if (strcmp(h->what, what) == 0)
                break;
        }
    if (h)
        h->fn(p->c, p->number, request, h->arg);
    else
        control_refuse(p->c, p->number, "unknown request");
}

static void on_read(struct bufferevent *io, void *arg)
{
    struct peer *p = arg;
    struct evbuffer *in = bufferevent_get_input(io);
    size_t size;
    char *line;
    while (!p->closing && (line = evbuffer_readln(in, &size, EVBUFFER_EOL_LF))) {
        handle(p, line, size);
        free(line);
    }
    if (evbuffer_get_length(in) > REQUEST_MAX)
        drop(p);
}

static void on_event(struct bufferevent *io, short what, void *arg)
{
    drop(arg);
}

uint32_t control_attach(struct control *c, int fd)
{
    struct peer *p = xcalloc(1, sizeof *p);
    evutil_make_socket_nonblocking(fd);
    p->c = c;
    p->number = ++c->last;
    /* no deferred callbacks: one that is pending at the end keeps its bufferevent */
    p->io = bufferevent_socket_new(loop_base(c->loop), fd, BEV_OPT_CLOSE_ON_FREE);
    if (!p->io)
        abort(); /* out of memory, as in mem.h */
    LL_PREPEND(c->peers, p);
    bufferevent_setcb(p->io, on_read, NULL, on_event, p);
    bufferevent_enable(p->io, EV_READ | EV_WRITE);
    return p->number;
}

static bool is_admitted(int fd)
{
    struct ucred who;
    socklen_t size = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
           (who.uid == geteuid() || who.uid == 0);
}

static void on_connect(int fd, const struct sockaddr *from, void *arg)
{
    struct control *c = arg;
    struct peer *p;
    int n;
    LL_COUNT(c->peers, p, n);
    if (n < PEERS_MAX && is_admitted(fd))
        control_attach(c, fd);
    else
        close(fd);
}

/* The socket at `path`. It has that name only once it listens: until then it refuses
 * connections, and another ddprun would remove it as stale (rundir.c). -1 with errno. */
static int listen_at(const char *path, const char *before)
{
    struct sockaddr_un sa;
    if (rundir_addr(before, &sa, NULL) < 0) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0 &&
        listen(fd, PEERS_MAX) == 0 && rename(before, path) == 0)
        return fd;
    int error = errno;
    close_fd(&fd);
    unlink(before);
    errno = error;
    return -1;
}

static int make_socket(const char *dir, void *arg)
{
    struct control *c = arg;
    OWNED char *path = xasprintf("%s/%d-%s", dir, (int)getpid(), c->id);
    OWNED char *before = xasprintf("%s/.%d-%s", dir, (int)getpid(), c->id);
    int fd = listen_at(path, before);
    if (fd >= 0)
        rundir_addr(path, &c->sa, NULL); /* shorter than `before` */
    return fd;
}

/* A job runs without it, too. */
static void on_timer(evutil_socket_t nothing, short what, void *arg)
{
    struct control *c = arg;
    struct ddp_err err;
    int fd = rundir_make(make_socket, c, &err);
    if (fd < 0) {
        log_info("no control socket: %s", err.text);
        return;
    }
    c->listener = listener_create(c->loop, fd, "the control socket", on_connect, c);
}

struct control *control_create(struct loop *loop, const char *id)
{
    struct control *c = xcalloc(1, sizeof *c);
    *c = (struct control){.loop = loop, .id = id};
    c->timer = loop_timer(loop, on_timer, c);
    loop_arm(c->timer, LISTEN_MS);
    return c;
}

void control_destroy(struct control *c)
{
    if (!c)
        return;
    struct peer *p, *next_peer;
    struct handler *h, *next;
    LL_FOREACH_SAFE(c->peers, p, next_peer)
    {
        loop_unpost(c->loop, p);
        peer_free(p);
    }
    LL_FOREACH_SAFE(c->handlers, h, next)
    free(h);
    if (c->listener) {
        unlink(c->sa.sun_path);
        rundir_leave();
        listener_destroy(c->listener);
    }
    loop_free(c->timer);
    free(c);
}

void control_handle(struct control *c, const char *what, control_fn fn, void *arg)
{
    struct handler *h = xcalloc(1, sizeof *h);
    *h = (struct handler){.what = what, .fn = fn, .arg = arg};
    LL_PREPEND(c->handlers, h);
}

void control_send(struct control *c, uint32_t peer, const void *data, size_t size)
{
    struct peer *p = find(c, peer);
    if (!p)
        return;
    bufferevent_write(p->io, data, size);
    if (evbuffer_get_length(bufferevent_get_output(p->io)) > UNREAD_MAX)
        drop(p);
}

void control_reply(struct control *c, uint32_t peer, const json_t *message)
{
    OWNED char *text = json_dumps(message, JSON_COMPACT);
    if (!text)
        return;
    size_t size = strlen(text);
    text[size++] = '\n'; /* in place of the zero */
    control_send(c, peer, text, size);
}

void control_refuse(struct control *c, uint32_t peer, const char *why)
{
    json_auto_t *no = json_pack("{s:s}", "error", why);
    control_reply(c, peer, no);
}

void control_flush(struct control *c, uint32_t peer, int64_t deadline_ms)
{
    struct peer *p = find(c, peer);
    if (!p)
        return;
    struct evbuffer *out = bufferevent_get_output(p->io);
    int fd = bufferevent_getfd(p->io);
    bufferevent_disable(p->io, EV_WRITE);
    evbuffer_unfreeze(out, 1);
    while (evbuffer_get_length(out) > 0 && sock_await(fd, POLLOUT, deadline_ms) == 0 &&
           evbuffer_write(out, fd) > 0)
        ;
}

size_t control_queued(const struct control *c, uint32_t peer)
{
    const struct peer *p = find(c, peer);
    return p ? evbuffer_get_length(bufferevent_get_output(p->io)) : SIZE_MAX;
}
