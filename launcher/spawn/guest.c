/* launcher/spawn/guest.c - see guest.h */
#define LOG_SUBSYS "start"
#include "launcher/spawn/guest.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/link/handshake.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

enum { GUESTS_MAX = 256, PROVE_S = 10, PAUSE_MS = 200 };

struct guest {
    struct guests *guests; /* borrowed: whose list it is on */
    int fd;                /* owned */
    struct event *ready;   /* owned: readable, or too late */
    struct handshake shake;
    unsigned char answer[HANDSHAKE_ANSWER];
    size_t have;
    struct guest *prev, *next;
};

struct guests {
    struct loop *loop; /* borrowed */
    struct secret key;
    bool (*knows)(const struct sockaddr *from, void *arg); /* NULL: everybody may try */
    guest_fn fn;
    void *arg;
    int fd, port;
    struct event *knock; /* owned */
    struct event *again; /* owned: the pause is over in which no descriptor was left */
    struct guest *list;  /* owned */
    size_t n, max;
    bool paused; /* once */
};

static void guest_end(struct guest *c, const char *why)
{
    struct guests *g = c->guests;
    if (why)
        log_info("a caller is sent away: %s", why);
    DL_DELETE(g->list, c);
    g->n--;
    event_free(c->ready);
    if (c->fd >= 0)
        close(c->fd);
    secret_wipe(&c->shake, sizeof c->shake);
    free(c);
}

static void guest_admit(struct guest *c)
{
    unsigned char proof[HANDSHAKE_PROOF];
    struct link_keys keys;
    struct ddp_err err;
    unsigned node;
    if (handshake_check(&c->shake, c->answer, proof, &node, &keys, &err) < 0) {
        guest_end(c, err.text);
        return;
    }
    /* 32 bytes into an empty buffer: they fit or the connection is dead */
    if (write(c->fd, proof, sizeof proof) != (ssize_t)sizeof proof) {
        guest_end(c, "it has gone");
        return;
    }
    char here[INET6_ADDRSTRLEN] = "";
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(c->fd, (struct sockaddr *)&ss, &len) == 0 && ss.ss_family != AF_UNIX)
        sock_addr((struct sockaddr *)&ss, here, sizeof here);
    sock_set_nodelay(c->fd);
    sock_set_keepalive(c->fd, 10, 5, 3);
    bool taken = c->guests->fn(node, c->fd, &keys, here, c->guests->arg);
    secret_wipe(&keys, sizeof keys);
    if (taken)
        c->fd = -1;
    guest_end(c, taken ? NULL : "its node is not expected");
}

static void guest_read(struct guest *c, bool late)
{
    if (late) {
        guest_end(c, "it has not proved the key in time");
        return;
    }
    ssize_t n = read(c->fd, c->answer + c->have, sizeof c->answer - c->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        guest_end(c, "it has hung up");
        return;
    }
    c->have += (size_t)n;
    if (c->have == sizeof c->answer)
        guest_admit(c);
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    guest_read(arg, what & EV_TIMEOUT);
}

static void guest_create(struct guests *g, int fd)
{
    unsigned char offer[HANDSHAKE_OFFER];
    struct ddp_err err;
    struct guest *c = xcalloc(1, sizeof *c);
    c->guests = g;
    c->fd = fd;
    c->ready = event_new(loop_base(g->loop), fd, EV_READ | EV_PERSIST, on_ready, c);
    if (!c->ready || event_add(c->ready, &(struct timeval){PROVE_S, 0}) < 0)
        abort(); /* as mem.h does when memory is gone */
    DL_APPEND(g->list, c);
    g->n++;
    if (handshake_offer(&c->shake, &g->key, offer, &err) < 0)
        guest_end(c, err.text);
    else if (write(fd, offer, sizeof offer) != (ssize_t)sizeof offer)
        guest_end(c, "it has gone");
}

void guests_add(struct guests *g, int fd)
{
    guest_create(g, fd);
}

/* Who knocks goes on knocking: without a pause the loop would do nothing but look. */
static void guests_pause(struct guests *g)
{
    if (!g->paused)
        log_warn("agents that call back have to wait: %s (raise 'ulimit -n')",
                 strerror(errno));
    g->paused = true;
    event_del(g->knock);
    event_add(g->again, &(struct timeval){0, PAUSE_MS * 1000});
}

static void guests_accept(struct guests *g)
{
    for (;;) {
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        struct sockaddr *sa = (struct sockaddr *)&from;
        int fd = accept4(g->fd, sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 &&
            (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            guests_pause(g);
        if (fd < 0)
            return;
        if (g->n < g->max && (!g->knows || g->knows(sa, g->arg)))
            guest_create(g, fd);
        else
            close(fd);
    }
}

static void on_knock(evutil_socket_t fd, short what, void *arg)
{
    guests_accept(arg);
}

static void on_again(evutil_socket_t fd, short what, void *arg)
{
    struct guests *g = arg;
    event_add(g->knock, NULL);
}

void guests_calls(const struct guests *g, struct strv *out)
{
    char first[INET6_ADDRSTRLEN] = "";
    struct ifaddrs *list;
    /* the address that looks best first; then the rest, whatever they are good for */
    if (sock_interface_addr(NULL, first, sizeof first, NULL) == 0)
        strv_pushf(out, "%s %d", first, g->port);
    if (getifaddrs(&list) == 0) {
        for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
            char text[INET6_ADDRSTRLEN];
            const struct sockaddr *sa = i->ifa_addr;
            if (!sa || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) ||
                (i->ifa_flags & IFF_LOOPBACK) || !(i->ifa_flags & IFF_UP))
                continue;
            sock_addr(sa, text, sizeof text);
            /* link-local addresses mean nothing elsewhere */
            if (strcmp(text, first) != 0 && strncmp(text, "fe80:", 5) != 0)
                strv_pushf(out, "%s %d", text, g->port);
        }
        freeifaddrs(list);
    }
    strv_pushf(out, "127.0.0.1 %d", g->port); /* "hosts" that are this machine */
}

struct guests *guests_create(struct loop *loop, const struct secret *key, size_t expected,
                             guest_fn fn, void *arg, struct ddp_err *err)
{
    const struct guests_where where = {.expected = expected};
    return guests_create_at(loop, key, &where, fn, arg, err);
}

struct guests *guests_create_at(struct loop *loop, const struct secret *key,
                                const struct guests_where *where, guest_fn fn, void *arg,
                                struct ddp_err *err)
{
    struct guests *g = xcalloc(1, sizeof *g);
    *g = (struct guests){
        .loop = loop, .key = *key, .knows = where->knows, .fn = fn, .arg = arg};
    g->max = GUESTS_MAX + where->expected;
    g->fd = sock_listen(NULL, where->port, &g->port, err);
    if (g->fd < 0) {
        err_prefix(err, "agents cannot call back");
        guests_destroy(g);
        return NULL;
    }
    g->knock = event_new(loop_base(loop), g->fd, EV_READ | EV_PERSIST, on_knock, g);
    g->again = evtimer_new(loop_base(loop), on_again, g);
    if (!g->knock || !g->again || event_add(g->knock, NULL) < 0)
        abort(); /* as mem.h does when memory is gone */
    return g;
}

void guests_destroy(struct guests *g)
{
    if (!g)
        return;
    while (g->list)
        guest_end(g->list, NULL);
    if (g->knock)
        event_free(g->knock);
    if (g->again)
        event_free(g->again);
    if (g->fd >= 0)
        close(g->fd);
    secret_wipe(&g->key, sizeof g->key);
    free(g);
}
