/* launcher/transport/accept.c - see accept.h
 *
 * All callers have the same time limit, so the list in order of arrival is also in order
 * of deadlines, and one timer is enough. Callers are counted by address to find the entry
 * to close; those that come through our own child (ssh) have no address and are kept.
 */
#include "launcher/transport/accept.h"

#include "common/duration.h"
#include "common/listener.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/link/handshake.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uthash.h>
#include <utlist.h>

enum { CALLERS_MAX = 256, PROVE_MS = 20000 };

struct source {
    char addr[INET6_ADDRSTRLEN];
    size_t n; /* callers from there */
    UT_hash_handle hh;
};

struct caller {
    struct acceptor *acceptor; /* borrowed: owner of the list */
    int fd;                    /* owned */
    struct sockaddr_storage from;
    struct source *source;  /* borrowed; NULL: our own child */
    struct event *readable; /* owned */
    int64_t deadline_ms;
    struct handshake shake;
    unsigned char answer[HANDSHAKE_ANSWER];
    size_t have;
    struct caller *prev, *next;
};

struct acceptor {
    struct loop *loop; /* borrowed */
    struct secret key;
    struct acceptor_options options;
    accepted_fn fn;
    void *arg;
    int port;
    struct listener *listener; /* owned */
    struct event *late;        /* owned: at the deadline of the oldest caller */
    struct caller *list;       /* owned, the oldest first */
    struct source *sources;    /* owned */
    size_t n;
};

/* --- the table of callers ----------------------------------------------------------- */

static void source_leave(struct acceptor *a, struct source *s)
{
    if (s && --s->n == 0) {
        HASH_DEL(a->sources, s);
        free(s);
    }
}

static struct source *source_enter(struct acceptor *a, const struct sockaddr *from)
{
    struct source *s;
    char addr[INET6_ADDRSTRLEN] = "";
    sock_addr(from, addr, sizeof addr);
    HASH_FIND_STR(a->sources, addr, s);
    if (!s) {
        s = xcalloc(1, sizeof *s);
        memcpy(s->addr, addr, sizeof addr);
        HASH_ADD_STR(a->sources, addr, s);
    }
    s->n++;
    return s;
}

/* `why` NULL: it closed the connection, or is accepted. */
static void caller_end(struct caller *c, const char *why)
{
    struct acceptor *a = c->acceptor;
    if (why)
        listener_refused(a->listener, (struct sockaddr *)&c->from, why);
    DL_DELETE(a->list, c);
    a->n--;
    source_leave(a, c->source);
    loop_close_fd(&c->readable, &c->fd);
    secret_wipe(&c->shake, sizeof c->shake);
    free(c);
}

static void evict_one(struct acceptor *a)
{
    const struct source *most = NULL;
    for (struct source *s = a->sources; s; s = s->hh.next) {
        if (!most || s->n > most->n)
            most = s;
    }
    struct caller *c;
    DL_SEARCH_SCALAR(a->list, c, source, most);
    if (c)
        caller_end(c, "others wait, too, and it was the oldest of most");
}

static void watch_deadline(struct acceptor *a)
{
    if (!a->list || evtimer_pending(a->late, NULL))
        return;
    int64_t ms = a->list->deadline_ms - now_ms();
    loop_arm(a->late, ms > 0 ? ms : 0);
}

static void on_late(evutil_socket_t fd, short what, void *arg)
{
    struct acceptor *a = arg;
    /* the agent of our own child may have reached us in the other way */
    while (a->list && a->list->deadline_ms <= now_ms())
        caller_end(a->list, a->list->source ? "it has not proved the key in time" : NULL);
    watch_deadline(a);
}

/* --- the proof ---------------------------------------------------------------------- */

static void caller_check(struct caller *c)
{
    unsigned char proof[HANDSHAKE_PROOF];
    struct acceptor *a = c->acceptor;
    struct link_keys keys;
    struct ddp_err err;
    unsigned node;
    if (handshake_check(&c->shake, c->answer, proof, &node, &keys, &err) < 0) {
        caller_end(c, err.text);
        return;
    }
    /* 32 bytes fit an empty send buffer; a short write means a dead connection */
    if (write(c->fd, proof, sizeof proof) != (ssize_t)sizeof proof) {
        caller_end(c, NULL);
        return;
    }
    char here[INET6_ADDRSTRLEN] = "";
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(c->fd, (struct sockaddr *)&ss, &len) == 0 && ss.ss_family != AF_UNIX)
        sock_addr((struct sockaddr *)&ss, here, sizeof here);
    sock_set_nodelay(c->fd);
    sock_set_keepalive(c->fd, 10, 5, 3);
    bool taken = a->fn(node, c->fd, &keys, here, a->arg);
    secret_wipe(&keys, sizeof keys);
    if (taken)
        c->fd = -1;
    char why[40];
    snprintf(why, sizeof why, "node %u is not expected", node);
    caller_end(c, taken ? NULL : why);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct caller *c = arg;
    ssize_t n = read(c->fd, c->answer + c->have, sizeof c->answer - c->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        caller_end(c, NULL);
        return;
    }
    c->have += (size_t)n;
    if (c->have == sizeof c->answer)
        caller_check(c);
}

static void caller_create(struct acceptor *a, int fd, const struct sockaddr *from)
{
    unsigned char offer[HANDSHAKE_OFFER];
    if (a->n >= CALLERS_MAX + a->options.expected)
        evict_one(a);
    struct caller *c = xcalloc(1, sizeof *c);
    *c = (struct caller){
        .acceptor = a, .fd = fd, .deadline_ms = now_ms() + a->options.prove_ms};
    if (from) {
        memcpy(&c->from, from, sizeof c->from);
        c->source = source_enter(a, from);
    }
    c->readable = loop_watch(a->loop, fd, EV_READ | EV_PERSIST, on_readable, c);
    DL_APPEND(a->list, c);
    a->n++;
    watch_deadline(a);
    handshake_offer(&c->shake, &a->key, offer);
    if (write(fd, offer, sizeof offer) != (ssize_t)sizeof offer)
        caller_end(c, NULL);
}

void acceptor_add(struct acceptor *a, int fd)
{
    caller_create(a, fd, NULL);
}

/* --- the listener ------------------------------------------------------------------- */

static void on_caller(int fd, const struct sockaddr *from, void *arg)
{
    struct acceptor *a = arg;
    if (!a->options.allowed || a->options.allowed(from, a->arg)) {
        caller_create(a, fd, from);
    } else {
        listener_refused(a->listener, from, "it is not a host of the job");
        close(fd);
    }
}

void acceptor_addresses(const struct acceptor *a, struct strv *out)
{
    char first[INET6_ADDRSTRLEN] = "";
    SCOPED(strv_finish) struct strv all = {0};
    /* the preferred address first, then all others */
    if (sock_interface_addr(NULL, first, sizeof first, NULL) == 0)
        strv_pushf(out, "%s %d", first, a->port);
    sock_own_addrs(true, &all);
    for (size_t i = 0; i < all.n; i++) {
        /* link-local addresses mean nothing elsewhere */
        if (strcmp(all.v[i], first) != 0 && strncmp(all.v[i], "fe80:", 5) != 0)
            strv_pushf(out, "%s %d", all.v[i], a->port);
    }
    strv_pushf(out, "127.0.0.1 %d", a->port); /* for "hosts" on this machine */
}

struct acceptor *acceptor_create(struct loop *loop, const struct secret *key,
                                 const struct acceptor_options *options, accepted_fn fn,
                                 void *arg, struct ddp_err *err)
{
    struct acceptor *a = xcalloc(1, sizeof *a);
    *a = (struct acceptor){
        .loop = loop, .key = *key, .options = *options, .fn = fn, .arg = arg};
    if (a->options.prove_ms == 0)
        a->options.prove_ms = PROVE_MS;
    int fd = sock_listen(NULL, options->port, &a->port, err);
    if (fd < 0) {
        acceptor_destroy(a);
        return NULL;
    }
    a->listener = listener_create(loop, fd, "the agents' port", on_caller, a);
    a->late = loop_timer(loop, on_late, a);
    return a;
}

void acceptor_destroy(struct acceptor *a)
{
    if (!a)
        return;
    while (a->list)
        caller_end(a->list, NULL);
    listener_destroy(a->listener);
    loop_free(a->late);
    secret_wipe(&a->key, sizeof a->key);
    free(a);
}
