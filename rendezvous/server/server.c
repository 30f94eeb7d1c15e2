/* rendezvous/server/server.c - see server.h */
#include "rendezvous/server/server_impl.h"

#include "common/err.h"
#include "common/listener.h"
#include "common/mem.h"
#include "common/sock.h"
#include "common/strv.h"
#include "rendezvous/protocol/http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    size_t max_key, max_value, max_list, max_memory;
} defaults = {8 << 10, 8 << 20, 128 << 10, (size_t)8 << 30};

enum {
    REQUEST_MAX = 64 << 20, /* or twice the largest allowed value */
    /* a failed host is detected after 60 + 4 * 15 s */
    KEEPALIVE_IDLE_S = 60,
    KEEPALIVE_INTERVAL_S = 15,
    KEEPALIVE_COUNT = 4,
};

/* -- accepting ----------------------------------------------------------------------- */

static const char no_descriptor[] = "no file descriptor is left: raise 'ulimit -n'";

static void spare_open(struct server *s)
{
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    s->turns_away = false;
}

/* Evict a connection that is not admitted yet. If there is none, give up the spare
 * descriptor: the next client is accepted to be refused, rather than left in the backlog.
 */
static bool on_full(void *arg)
{
    struct server *s = arg;
    if (ticket_evict(s, no_descriptor))
        return true;
    if (s->spare_fd < 0)
        return false;
    close(s->spare_fd);
    s->spare_fd = -1;
    s->turns_away = true;
    return true;
}

static void server_turn_away(struct server *s, int fd, const union peer *peer,
                             const char *why)
{
    close(fd);
    server_refuse(s, peer, why);
}

static void on_client(int fd, const struct sockaddr *from, void *arg)
{
    struct server *s = arg;
    union peer peer;
    memcpy(&peer, from, sizeof peer);
    if (s->turns_away) {
        server_turn_away(s, fd, &peer, no_descriptor);
        spare_open(s);
        return;
    }
    s->accepted++;
    char why[64];
    snprintf(why, sizeof why, "%zu connections are the limit",
             s->options.max_connections);
    bool full = s->options.max_connections &&
                s->nconns + s->nwaiting >= s->options.max_connections;
    if (full && !ticket_evict(s, why))
        server_turn_away(s, fd, &peer, why);
    else if (s->options.ask)
        ticket_create(s, fd, &peer);
    else
        conn_start(s, fd, &peer, 0);
}

void server_adopt(struct server *s, int fd, unsigned scope)
{
    s->accepted++;
    conn_start(s, fd, &(const union peer){.sa.sa_family = AF_UNSPEC}, scope);
}

/* -- control ------------------------------------------------------------------------- */

int server_port(const struct server *s)
{
    return s->port;
}

void server_drop_scope(struct server *s, unsigned scope)
{
    store_drop(s->store, scope);
    conn_news(s);
}

int server_set(struct server *s, unsigned scope, const char *key, const char *value,
               struct ddp_err *err)
{
    struct space *space = store_open(s->store, scope);
    int rc = space_set(space, (struct bytes){key, strlen(key)},
                       (struct bytes){value, strlen(value)}, err);
    space_close(space);
    conn_news(s);
    return rc;
}

static void collect_of_world(struct bytes key, void *arg)
{
    if (http_is_of_world(key))
        strv_pushf(arg, "%.*s", (int)key.size, (const char *)key.data);
}

void server_end_world(struct server *s, unsigned scope)
{
    struct space *space = store_open(s->store, scope);
    SCOPED(strv_finish) struct strv keys = {0};
    space_each(space, collect_of_world, &keys);
    for (size_t i = 0; i < keys.n; i++)
        space_delete(space, (struct bytes){keys.v[i], strlen(keys.v[i])});
    space_close(space);
}

static void on_asked(struct session_host *h, struct bytes key, const struct bytes *value)
{
    const struct server *s =
        (void *)((char *)h - offsetof(struct server, host)); /* its only owner */
    s->options.asked(key.data, key.size, value ? value->data : NULL,
                     value ? value->size : 0, s->options.asked_arg);
}

struct server_stats server_stats(const struct server *s)
{
    return (struct server_stats){
        .accepted = s->accepted,
        .refused = s->refused,
        .requests = s->host.requests,
        .connections = s->nconns,
        .keys = store_keys(s->store),
        .waiters = store_waiters(s->store),
        .bytes = store_bytes(s->store),
    };
}

static void server_close_all(struct server *s)
{
    while (s->conns)
        conn_close(s->conns, NULL);
}

static void server_stop_listening(struct server *s)
{
    listener_destroy(s->listener);
    s->listener = NULL;
}

static void on_drain_timer(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    size_t closed = s->nconns;
    server_close_all(s);
    server_drained(s, closed);
}

void server_drain(struct server *s, int64_t grace_ms,
                  void (*done)(size_t closed, void *arg), void *arg)
{
    s->drained = done;
    s->drained_arg = arg;
    server_stop_listening(s);
    loop_arm(&s->drain_timer, s->nconns > 0 ? grace_ms : 0);
}

/* -- create, destroy ----------------------------------------------------------------- */

static size_t or_default(size_t given, size_t otherwise)
{
    return given ? given : otherwise;
}

static void server_configure(struct server *s, const struct server_options *o)
{
    struct frame_limits *limits = &s->host.limits;
    limits->max_key = or_default(o->max_key, defaults.max_key);
    limits->max_value = or_default(o->max_value, defaults.max_value);
    limits->max_list = or_default(o->max_list, defaults.max_list);
    limits->max_request =
        limits->max_value > REQUEST_MAX / 2 ? limits->max_value * 2 : REQUEST_MAX;
    s->host.rule = o->dialect;
    s->host.asked = o->asked ? on_asked : NULL;
    s->options = *o;
    if (o->ask_timeout_ms == 0)
        s->options.ask_timeout_ms = ASK_TIMEOUT_MS;
}

/* Options that accepted sockets inherit from the listener. */
static int server_listen(struct server *s, const struct server_options *o,
                         struct ddp_err *err)
{
    int fd = o->listen_fd;
    if (fd < 0)
        return 0;
    if (fd > 0) {
        union peer local = {0};
        socklen_t len = sizeof local;
        if (sock_set_nonblock(fd, true) < 0 || getsockname(fd, &local.sa, &len) < 0) {
            err_errno(err, "cannot listen on descriptor %d", fd);
            close(fd);
            return -1;
        }
        s->port = sock_port(&local.sa);
    } else if ((fd = sock_listen(o->addr, o->port, &s->port, err)) < 0) {
        return -1;
    }
    static const char loopback[] = "lo";
    if (o->local_only) /* Linux before 5.7 requires a privilege for it */
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, loopback, sizeof loopback);
    sock_set_nodelay(fd);
    sock_set_keepalive(fd, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT);
    s->listener = listener_create(s->loop, fd, "the store", on_client, s);
    listener_on_full(s->listener, on_full);
    return 0;
}

struct server *server_create(struct loop *loop, const struct server_options *options,
                             struct ddp_err *err)
{
    struct server *s = xcalloc(1, sizeof *s);
    s->loop = loop;
    s->max_held = or_default(options->max_memory, defaults.max_memory);
    s->store = store_create(s->max_held);
    s->input = xcalloc(1, INPUT_ROOM);
    s->output = xcalloc(1, sizeof *s->output);
    server_configure(s, options);
    conn_host_init(&s->host);
    spare_open(s);
    event_assign(&s->drain_timer, loop_base(loop), -1, 0, on_drain_timer, s);
    tickets_init(s);
    if (server_listen(s, options, err) < 0) {
        int error = errno; /* of the port: the caller adds advice */
        server_destroy(s);
        errno = error;
        return NULL;
    }
    return s;
}

void server_destroy(struct server *s)
{
    if (!s)
        return;
    s->options.notice = NULL;
    s->options.refused = NULL;
    server_stop_listening(s);
    event_del(&s->drain_timer);
    tickets_finish(s);
    server_close_all(s);
    s->drained = NULL;
    loop_unpost(s->loop, s);
    server_reap(s);
    session_host_finish(&s->host);
    store_destroy(s->store);
    out_finish(s->output);
    free(s->output);
    free(s->input);
    close_fd(&s->spare_fd);
    free(s);
}
