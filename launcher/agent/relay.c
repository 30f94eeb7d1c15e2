/* launcher/agent/relay.c - see relay.h */
#define LOG_SUBSYS "relay"
#include "launcher/agent/relay.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/merge.h"
#include "launcher/transport/accept.h"
#include "launcher/transport/node_starter.h"

#include <stdlib.h>
#include <utlist.h>

/* The link to a child, and through it to all nodes below that. */
struct branch {
    struct relay *relay; /* borrowed: the owner */
    struct link *link;   /* owned */
    unsigned node;       /* at its other end */
    struct branch *prev, *next;
};

struct relay {
    struct loop *loop; /* borrowed */
    unsigned self;
    struct msg_hosts hosts;       /* owned; empty if others start the agents below */
    struct node_starter *starter; /* owned; NULL: the same */
    struct acceptor *acceptor;    /* owned; NULL: it starts them itself, or all joined */
    struct branch *branches;      /* owned */
    struct branch **routes;       /* owned, by node; NULL: not below us, or not joined */
    unsigned nodes;               /* size of `routes` */
    unsigned below;               /* nodes that are reached */
    struct merge *merge;          /* owned */
    void (*idle)(void *arg);
    void *arg;
};

void relay_send(struct relay *r, enum msg_type type, const void *m)
{
    SCOPED(pack_finish) struct pack k = {0};
    msg_pack(type, m, &k);
    struct frame f = {.type = type, .node = r->self, .body = k.p, .size = k.n};
    merge_up(r->merge, &f);
}

/* Is this node reached over that link? Its HELLO makes it so. */
static bool is_behind(struct branch *b, const struct frame *f, unsigned node)
{
    struct relay *r = b->relay;
    if (node >= r->nodes)
        return false;
    if (f->type == MSG_HELLO && !r->routes[node]) {
        r->routes[node] = b;
        merge_expect(r->merge, 1 + ++r->below);
    }
    return r->routes[node] == b;
}

static void on_entry(const struct frame *f, const uint32_t *spans, uint32_t n, void *arg)
{
    struct branch *b = arg;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t node = spans[i] >> 16; node <= (spans[i] & 0xffff); node++) {
            if (!is_behind(b, f, node))
                return;
        }
    }
    merge_up_spans(b->relay->merge, f, spans, n);
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct branch *b = arg;
    struct ddp_err err;
    if (f->type == MSG_MERGED && merge_entries(f, on_entry, b, &err) < 0)
        log_warn("from node %u: %s", b->node, err.text);
    else if (f->type != MSG_MERGED && is_behind(b, f, f->node))
        merge_up(b->relay->merge, f);
}

/* The agent was authenticated, but the link closed before its HELLO. */
static void report_early_end(struct relay *r, unsigned node, const char *why)
{
    OWNED char *line = xasprintf("%s: the agent broke off while it was starting: %s",
                                 r->hosts.hosts[node].name, why ? why : "it has ended");
    relay_send(r, MSG(start_failed, node, line));
}

static void on_closed(struct link *l, const char *why, void *arg)
{
    struct branch *b = arg;
    struct relay *r = b->relay;
    if (r->routes[b->node] != b && r->starter)
        report_early_end(r, b->node, why);
    for (unsigned i = 0; i < r->nodes; i++) {
        if (r->routes[i] != b)
            continue;
        r->routes[i] = NULL;
        merge_expect(r->merge, 1 + --r->below);
        relay_send(r, MSG(node_lost, i, msg_text(why ? why : "its agent has ended")));
    }
    DL_DELETE(r->branches, b);
    link_close(l);
    free(b);
}

static const struct link_events link_events = {on_frame, on_closed};

static void on_joined(unsigned node, int fd, const struct link_keys *keys,
                      const char *here, void *arg)
{
    struct relay *r = arg;
    struct branch *b = xcalloc(1, sizeof *b);
    b->relay = r;
    b->node = node;
    b->link = link_create(r->loop, fd, FRAME_UP, keys, &link_events, b);
    DL_APPEND(r->branches, b);
    link_send_msg(b->link, node, MSG(relayed));
    if (r->starter && node_starter_has_below(r->starter, node))
        link_send_msg(b->link, node, MSG_HOSTS, &r->hosts);
}

static void on_failed(unsigned node, const char *line, bool follows, void *arg)
{
    relay_send(arg, MSG(start_failed, node, msg_text(line)));
}

static void on_idle(void *arg)
{
    struct relay *r = arg;
    r->idle(r->arg);
}

static const struct node_starter_events node_starter_events = {on_joined, on_failed, NULL,
                                                               on_idle};

void relay_down(struct relay *r, const struct frame *f)
{
    if (f->type == MSG_JOB) { /* sent when all nodes have joined */
        if (r->starter)
            node_starter_close(r->starter);
        acceptor_destroy(r->acceptor);
        r->acceptor = NULL;
    }
    if (f->node != NODE_ALL) {
        if (f->node < r->nodes && r->routes[f->node])
            link_send(r->routes[f->node]->link, f->type, f->node, f->body, f->size, NULL,
                      0);
        return;
    }
    struct branch *b;
    DL_FOREACH (r->branches, b) {
        link_send(b->link, f->type, NODE_ALL, f->body, f->size, NULL, 0);
    }
}

void relay_beat(struct relay *r)
{
    struct branch *b;
    DL_FOREACH (r->branches, b)
        link_send_msg(b->link, b->node, MSG(relayed));
}

bool relay_has_ssh(const struct relay *r, pid_t pid)
{
    return r->starter && node_starter_has_process(r->starter, pid);
}

bool relay_is_idle(const struct relay *r)
{
    return !r->starter || node_starter_is_idle(r->starter);
}

static void close_branches(struct relay *r, void (*how)(struct link *l))
{
    struct branch *b, *next;
    DL_FOREACH_SAFE (r->branches, b, next) {
        DL_DELETE(r->branches, b);
        how(b->link);
        free(b);
    }
}

void relay_stop(struct relay *r, bool kill)
{
    if (r->starter)
        node_starter_stop(r->starter);
    if (r->starter && kill)
        node_starter_kill(r->starter);
    acceptor_destroy(r->acceptor);
    r->acceptor = NULL;
    close_branches(r, link_close);
    for (unsigned i = 0; i < r->nodes; i++)
        r->routes[i] = NULL;
}

struct relay *relay_create(struct loop *loop, struct reap *reap, unsigned self,
                           const char *log_level, struct msg_hosts *hosts,
                           void (*up)(const struct frame *f, void *arg),
                           void (*idle)(void *arg), void *arg, struct ddp_err *err)
{
    struct relay *r = xcalloc(1, sizeof *r);
    *r = (struct relay){
        .loop = loop, .self = self, .hosts = *hosts, .idle = idle, .arg = arg};
    r->merge = merge_create(loop, self, up, arg);
    *hosts = (struct msg_hosts){0};
    r->nodes = r->hosts.nhosts;
    r->routes = xcalloc(r->nodes, sizeof *r->routes);
    struct secret key; /* for the agents below only */
    if (secret_make(&key, err) == 0)
        r->starter = node_starter_create(loop, reap, &transport_ssh, &r->hosts, &key,
                                         log_level, &node_starter_events, r, err);
    secret_wipe(&key, sizeof key);
    if (!r->starter) {
        relay_destroy(r);
        return NULL;
    }
    log_debug("starting %zu agents below", node_starter_queue_below(r->starter, self));
    node_starter_go(r->starter);
    return r;
}

static bool on_accepted(unsigned node, int fd, const struct link_keys *keys,
                        const char *here, void *arg)
{
    on_joined(node, fd, keys, here, arg);
    return true;
}

struct relay *relay_listen(struct loop *loop, unsigned self, int port,
                           const struct secret *key,
                           void (*up)(const struct frame *f, void *arg), void *arg,
                           struct ddp_err *err)
{
    struct relay *r = xcalloc(1, sizeof *r);
    *r = (struct relay){.loop = loop, .self = self, .nodes = NODES_MAX, .arg = arg};
    r->merge = merge_create(loop, self, up, arg);
    r->routes = xcalloc(r->nodes, sizeof *r->routes); /* pages of it are used as needed */
    for (int i = 0; i < BOOTSTRAP_PORTS && !r->acceptor; i++) {
        const struct acceptor_options where = {.port = port + i};
        r->acceptor = acceptor_create(loop, key, &where, on_accepted, r, err);
    }
    if (r->acceptor)
        return r;
    err_prefix(err, "agents cannot call back");
    relay_destroy(r);
    return NULL;
}

void relay_destroy(struct relay *r)
{
    if (!r)
        return;
    close_branches(r, link_destroy);
    node_starter_destroy(r->starter);
    acceptor_destroy(r->acceptor);
    merge_destroy(r->merge);
    msg_hosts_finish(&r->hosts);
    free(r->routes);
    free(r);
}
