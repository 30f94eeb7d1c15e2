/* launcher/peer/listener.c - see listener.h */
#define LOG_SUBSYS "peers"
#include "launcher/peer/listener.h"

#include "common/err.h"
#include "common/hostset.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sanitize.h"
#include "common/sock.h"
#include "launcher/alloc/source.h"
#include "launcher/transport/accept.h"
#include "launcher/transport/program.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

/* --- callers ------------------------------------------------------------------------ */

static void caller_free(struct caller *c)
{
    loop_close_fd(&c->readable, &c->fd);
    msg_join_finish(&c->request);
    secret_wipe(&c->keys, sizeof c->keys);
    free(c->here);
    free(c);
}

struct caller *caller_joined(const struct peer_listener *l, unsigned rank,
                             const struct caller *but)
{
    struct caller *c = l->callers ? l->callers[rank] : NULL;
    while (c && (!c->joined || c == but))
        c = c->next;
    return c;
}

void caller_count(struct caller *c)
{
    c->joined = true;
    c->listener->njoined++;
    c->listener->copies += c->request.copies;
}

void caller_drop(struct caller *c)
{
    struct peer_listener *l = c->listener;
    if (c->joined) {
        l->njoined--;
        l->copies -= c->request.copies;
    }
    LL_DELETE(l->callers[c->rank], c);
    caller_free(c);
}

struct caller *caller_add(struct peer_listener *l, unsigned rank)
{
    struct caller *c = xcalloc(1, sizeof *c);
    *c = (struct caller){.listener = l, .rank = rank, .fd = -1};
    if (!l->callers)
        l->callers = xcalloc((size_t)l->job->size, sizeof *l->callers);
    LL_APPEND(l->callers[rank], c);
    return c;
}

/* 1 KiB fits an empty send buffer; a short write means a dead connection. */
static void send_reply(struct caller *c, const struct msg_joined *reply)
{
    unsigned char out[JOIN_SIZE];
    join_message_seal(MSG_JOINED, reply, &c->keys.out, out);
    if (write(c->fd, out, sizeof out) != (ssize_t)sizeof out)
        log_debug("rank %u did not receive its reply", c->rank);
}

void caller_refuse(struct caller *c, const char *why)
{
    struct msg_joined no = {.code = EXIT_CANNOT_START, .why = xasprintf("%.600s", why)};
    send_reply(c, &no);
    free(no.why);
}

int caller_admit(struct caller *c, unsigned node, unsigned nnodes)
{
    struct msg_joined yes = {.node = node, .nnodes = nnodes};
    int fd = c->fd;
    if (fd >= 0)
        send_reply(c, &yes);
    loop_free(c->readable);
    c->readable = NULL;
    c->fd = -1;
    return fd;
}

/* The name is printed, and becomes a part of file names (--output-filename). */
static bool is_host_name(const char *name)
{
    const char *p = name;
    while (isalnum((unsigned char)*p) || (*p && strchr("._-", *p)))
        p++;
    return !*p && *name != '.' && *name != '-' && *name;
}

static int open_request(struct caller *c, struct ddp_err *err)
{
    struct msg_join *r = &c->request;
    TRY(join_message_open(MSG_JOIN, c->bytes, &c->keys.in, r, err));
    if (!is_host_name(r->host))
        return err_set(err, "'%s' is no name of a host", SANITIZED(r->host));
    if (r->slots_from)
        sanitize_all(r->slots_from);
    return 0;
}

static void on_request(struct caller *c)
{
    struct ddp_err err;
    if (open_request(c, &err) < 0) {
        log_warn("rejected a peer: %s", err.text);
        caller_refuse(c, err.text);
        caller_drop(c);
        return;
    }
    caller_count(c);
    c->listener->on_join(c, c->listener->arg);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct caller *c = arg;
    unsigned char extra;
    ssize_t n = c->joined ? read(c->fd, &extra, 1)
                          : read(c->fd, c->bytes + c->have, sizeof c->bytes - c->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || c->joined) {
        log_info("%s disconnected", c->joined ? c->request.host : "a peer");
        caller_drop(c);
        return;
    }
    c->have += (size_t)n;
    if (c->have == sizeof c->bytes)
        on_request(c);
}

/* Limit the authenticated connections of one rank without a request: with a public key
 * they may be strangers. */
static void limit_pending(struct peer_listener *l, unsigned rank)
{
    enum { PENDING_MAX = 4 };
    struct caller *c, *pending = NULL;
    int n = 0;
    if (!l->callers)
        return;
    LL_FOREACH (l->callers[rank], c) {
        n += !c->joined;
        pending = pending || c->joined ? pending : c;
    }
    if (n >= PENDING_MAX)
        caller_drop(pending);
}

static bool on_accepted(unsigned rank, int fd, const struct link_keys *keys,
                        const char *here, void *arg)
{
    struct peer_listener *l = arg;
    if (rank == 0 || rank >= (unsigned)l->job->size)
        return false;
    limit_pending(l, rank);
    struct caller *c = caller_add(l, rank);
    c->fd = fd;
    c->keys = *keys;
    c->here = xstrdup(here);
    c->readable = loop_watch(l->loop, fd, EV_READ | EV_PERSIST, on_readable, c);
    return true;
}

static bool is_allowed(const struct sockaddr *from, void *arg)
{
    const struct peer_listener *l = arg;
    return hostset_has(l->allowed, from);
}

/* --- the listener ------------------------------------------------------------------- */

/* The hosts that may join when the key is public: those that the outer launcher names, or
 * those of -H (key.c requires it); NULL with `err`. */
static struct hostset *allowed_hosts(const struct opts *opts, const struct ambient_job *o,
                                     struct ddp_err *err)
{
    if (o->hosts.n > 0)
        return hostset_create(&o->hosts);
    SCOPED(alloc_clear) struct alloc a = {0};
    SCOPED(strv_finish) struct strv names = {0};
    if (alloc_hosts_arg.read(opts, &a, err) == 0) {
        for (size_t i = 0; i < a.nnodes; i++)
            strv_push(&names, a.nodes[i].name);
    }
    return names.n > 0 ? hostset_create(&names) : NULL;
}

/* The address of --interface comes first. */
static int write_meeting_file(struct peer_listener *l, const struct peer_key *k,
                              struct ddp_err *err)
{
    char addr[64], name[] = "head";
    struct bootstrap s = {.key = k->key, .name = name};
    struct strv calls = {0};
    acceptor_addresses(l->acceptor, &calls);
    int rc = 0;
    if (l->opts->interface) {
        int port;
        rc = sock_interface_addr(l->opts->interface, addr, sizeof addr, err);
        if (rc == 0 && sscanf(calls.v[0], "%*s %d", &port) == 1)
            strv_pushf(&s.calls, "%s %d", addr, port);
    }
    if (rc == 0) {
        strv_push_all(&s.calls, calls.v);
        rc = meeting_file_write(k->meeting_file, &s, err);
    }
    log_info("peers find this head through '%s'", meeting_file_path(k->meeting_file));
    strv_finish(&calls);
    strv_finish(&s.calls);
    secret_wipe(&s.key, sizeof s.key);
    return rc;
}

int peer_listener_open(struct peer_listener *l, const struct peer_key *k,
                       struct ddp_err *err)
{
    int port = l->opts->master_port ? l->opts->master_port : PEER_PORT;
    if (k->meeting_file && !l->job->by_hand)
        port = 0; /* the meeting file has it */
    if (k->open && !(l->allowed = allowed_hosts(l->opts, l->job, err)))
        return -1;
    const struct acceptor_options options = {.expected = (size_t)l->job->size,
                                             .port = port,
                                             .allowed = l->allowed ? is_allowed : NULL};
    l->acceptor = acceptor_create(l->loop, &k->key, &options, on_accepted, l, err);
    if (!l->acceptor)
        return err_prefix(err, "the instances of ddprun cannot meet at this port "
                               "(--master-port chooses another, the same on each host)");
    return k->meeting_file ? write_meeting_file(l, k, err) : 0;
}

void peer_listener_close(struct peer_listener *l)
{
    for (int r = 0; l->callers && r < l->job->size; r++) {
        while (l->callers[r])
            caller_drop(l->callers[r]);
    }
    free(l->callers);
    acceptor_destroy(l->acceptor);
    hostset_destroy(l->allowed);
    *l = (struct peer_listener){0};
}
