/* launcher/transport/node_starter.c - see node_starter.h
 *
 * A host's start is a state machine: queued -> starting -> joined, or failed. A batch is
 * a transport process (an ssh, an srun) and the hosts it starts agents on: one, or all. A
 * failed host is found by the end of the process, or, where one process serves many hosts
 * and continues for the others, by its stderr.
 */
#define LOG_SUBSYS "start"
#include "launcher/transport/node_starter.h"
#include "launcher/transport/diagnose.h"

#include "common/err.h"
#include "common/hostlist.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/handshake.h"
#include "launcher/transport/accept.h"
#include "launcher/transport/bootstrap_file.h"
#include "launcher/transport/package.h"
#include "launcher/transport/transport_proc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

extern char **environ;

/* DOUBT_MS: after a line that blames a host, wait for a more specific one. */
enum { TRIES = 3, AGAIN_MS = 400, DOUBT_MS = 400 };

enum start_state { START_NOT, START_QUEUED, START_RUNS, START_JOINED, START_FAILED };

struct start {
    struct node_starter *starter; /* borrowed: owner */
    unsigned node;
    enum start_state state;
    struct batch *batch; /* borrowed: its transport process; NULL: none now */
    struct event *timer; /* owned: until the next try, or until `doubt` is final */
    char *doubt;         /* owned: the likely reason it does not start; NULL */
    bool follows;        /* another host's failure may be the cause of `doubt` */
    int tries;
    bool apart; /* started again: not in the tree */
};

struct batch {
    struct node_starter *starter; /* borrowed: owner of the list */
    struct transport_proc *proc;  /* owned */
    char *bootstrap_path;         /* owned, removed with the batch; NULL: none */
    bool blamed;                  /* one host certainly failed: the others fail with it */
    struct batch *prev, *next;
};

struct node_starter {
    struct loop *loop;                 /* borrowed */
    struct reap *reap;                 /* borrowed */
    const struct transport *transport; /* borrowed */
    const struct msg_hosts *hosts;     /* borrowed */
    struct secret key;
    const char *log_level; /* borrowed, may be NULL */
    struct node_starter_events events;
    void *arg;
    struct acceptor *acceptor;     /* owned: the listener and the callers */
    struct strv calls;             /* our addresses */
    struct strv env;               /* of the transport processes; empty: ours */
    char *path;                    /* owned: the transport's program */
    const struct package *package; /* borrowed: sent before the input; NULL: none */
    struct start *starts;          /* owned, one per host */
    struct batch *batches;         /* owned */
    unsigned first;                /* no host before this one is queued */
    unsigned starting;
    struct tree_row row;
    unsigned width; /* of the tree in which agents connect; 0: to us */
    char *stalled;  /* owned: no more bootstrap files can be written, and why; NULL */
    bool stopped;
    bool going; /* in node_starter_go(), which a start that fails at once calls again */
};

static const struct host *host_of(const struct start *st)
{
    return &st->starter->hosts->hosts[st->node];
}

static void start_move(struct start *st, enum start_state to)
{
    st->starter->starting -= st->state == START_RUNS;
    st->starter->starting += to == START_RUNS;
    st->state = to;
}

/* --- the end of a start ------------------------------------------------------------- */

static void start_fail(struct start *st, const char *line)
{
    struct node_starter *s = st->starter;
    if (st->state == START_FAILED || st->state == START_JOINED)
        return;
    start_move(st, START_FAILED);
    if (st->batch && !s->transport->at_once)
        transport_proc_close_stdin(st->batch->proc);
    log_debug("%s", line);
    s->events.failed(st->node, line, st->follows, s->arg);
    node_starter_go(s);
}

/* --- timers ------------------------------------------------------------------------- */

static void run_together(const unsigned *nodes, size_t n, void *arg);

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct start *st = arg;
    if (st->state != START_RUNS || st->starter->stopped)
        return;
    if (st->doubt && !(st->batch && st->batch->blamed))
        start_fail(st, st->doubt);
    else if (!st->batch)
        run_together(&st->node, 1, st->starter);
}

static void start_arm(struct start *st, int64_t ms)
{
    if (!st->timer)
        st->timer = loop_timer(st->starter->loop, on_timer, st);
    loop_arm(st->timer, ms);
}

/* --- output and end of transport processes ------------------------------------------ */

/* "NAME: why" for each of the hosts blamed. */
static void blame_hosts(struct batch *batch, const struct blame *b)
{
    struct node_starter *s = batch->starter;
    struct ddp_err err;
    SCOPED(strv_finish) struct strv names = {0};
    if (hostlist_expand(b->hosts, &names, &err) < 0)
        log_debug("'%s': %s", b->hosts, err.text);
    for (unsigned i = 0; i < s->hosts->nhosts; i++) {
        struct start *st = &s->starts[i];
        bool meant = false;
        for (size_t k = 0; k < names.n && st->batch == batch; k++)
            meant |= bootstrap_is_host(names.v[k], host_of(st)->name);
        if (meant && b->gone && st->state == START_JOINED && s->events.lost &&
            !s->stopped)
            s->events.lost(i, b->text, s->arg);
        if (!meant || st->state != START_RUNS ||
            (!b->sure && (st->doubt || batch->blamed)))
            continue;
        batch->blamed |= b->sure;
        free(st->doubt);
        st->doubt = xasprintf("%s: %s", host_of(st)->name, b->text);
        st->follows = b->follows;
        if (b->sure)
            start_fail(st, st->doubt);
        else
            start_arm(st, DOUBT_MS);
    }
}

static unsigned count_in(const struct batch *batch, enum start_state state)
{
    unsigned n = 0;
    for (unsigned i = 0; i < batch->starter->hosts->nhosts; i++) {
        const struct start *st = &batch->starter->starts[i];
        n += st->batch == batch && st->state == state;
    }
    return n;
}

static void on_line(const char *line, void *arg)
{
    struct batch *batch = arg;
    struct node_starter *s = batch->starter;
    struct blame b = {0};
    if (s->transport->blame && s->transport->blame(line, s->hosts->agent, &b))
        blame_hosts(batch, &b);
    free(b.hosts);
    if (count_in(batch, START_RUNS) == 0 && !s->stopped)
        log_info("%s: %s", s->transport->name, line);
    else
        log_debug("%s: %s", s->transport->name, line);
}

/* An agent that cannot connect back is reached through ssh's own stdio. */
static void on_linked(int fd, void *arg)
{
    struct batch *batch = arg;
    if (batch->starter->acceptor && !batch->starter->stopped)
        acceptor_add(batch->starter->acceptor, fd);
    else
        close(fd);
}

/* If no host is blamed by name, the reason applies to all that have not joined. */
static bool anyone_doubted(const struct batch *batch)
{
    for (unsigned i = 0; i < batch->starter->hosts->nhosts; i++) {
        const struct start *st = &batch->starter->starts[i];
        if (st->batch == batch && (st->doubt || st->state == START_FAILED))
            return true;
    }
    return false;
}

static void start_lost_proc(struct start *st, const char *output, int status)
{
    struct node_starter *s = st->starter;
    struct diagnosis d;
    transport_diagnose(s->transport, s->hosts, host_of(st), output, status, &d);
    st->batch = NULL;
    if (d.again && st->tries < TRIES && !s->stopped)
        start_arm(st, (int64_t)AGAIN_MS * st->tries);
    else
        start_fail(st, d.text);
}

static void batch_destroy(struct batch *batch)
{
    DL_DELETE(batch->starter->batches, batch);
    transport_proc_destroy(batch->proc);
    bootstrap_file_remove(batch->bootstrap_path);
    free(batch);
}

static void on_ended(int status, void *arg)
{
    struct batch *batch = arg;
    struct node_starter *s = batch->starter;
    bool doubted = anyone_doubted(batch);
    for (unsigned i = 0; i < s->hosts->nhosts; i++) {
        struct start *st = &s->starts[i];
        if (st->batch != batch)
            continue;
        if (st->state == START_RUNS && st->doubt && !batch->blamed)
            start_fail(st, st->doubt);
        else if (st->state == START_RUNS && !doubted)
            start_lost_proc(st, transport_proc_stderr(batch->proc), status);
        st->batch = NULL;
    }
    batch_destroy(batch);
    if (!s->batches)
        s->events.idle(s->arg);
}

/* --- starting ----------------------------------------------------------------------- */

/* The bootstrap lines for the agents of `nodes`; the caller wipes and frees. */
static char *write_bootstrap(const struct node_starter *s, const unsigned *nodes,
                             size_t n)
{
    SCOPED(bootstrap_finish)
    struct bootstrap m = {.key = s->key,
                          .log_level = xstrdup(s->log_level),
                          .detached = !s->transport->lifeline,
                          .stdio = s->transport->talks};
    strv_push_all(&m.calls, s->calls.v);
    if (s->transport->at_once) {
        m.width = s->width;
        for (size_t i = 0; i < n; i++)
            bootstrap_add_node(&m, nodes[i], s->hosts->hosts[nodes[i]].name);
    } else {
        m.node = nodes[0];
        handshake_node_key(&s->key, m.node, &m.key);
        m.name = xstrdup(s->hosts->hosts[m.node].name);
        if (s->width > 0 && !s->starts[m.node].apart)
            bootstrap_set_tree(&m, &s->key, s->width, s->row.nodes, s->row.n,
                               s->row.place[m.node]);
    }
    return bootstrap_write(&m);
}

/* The loop waits for it; a directory that does not answer is waited for once. */
static char *write_file(struct node_starter *s, const char *text, struct ddp_err *err)
{
    char *path = s->stalled ? NULL : bootstrap_file_write(text, err);
    if (s->stalled)
        err_set(err, "%s", s->stalled);
    else if (!path && errno == ETIMEDOUT)
        s->stalled = xstrdup(err->text);
    return path;
}

/* The process, with its bootstrap lines on stdin or in a file. NULL with `err`. */
static struct batch *batch_create(struct node_starter *s, const unsigned *nodes, size_t n,
                                  struct ddp_err *err)
{
    static const struct transport_proc_events events = {on_line, on_linked, on_ended};
    struct batch *batch = xcalloc(1, sizeof *batch);
    batch->starter = s;
    SCOPED(strv_finish) struct strv argv = {0};
    s->transport->command(s->hosts, nodes, n, &argv);
    OWNED char *text = write_bootstrap(s, nodes, n);
    int rc = 0;
    if (s->transport->by_file) {
        batch->bootstrap_path = write_file(s, text, err);
        rc = batch->bootstrap_path ? 0 : -1;
        strv_push(&argv, "--bootstrap");
        strv_push(&argv, batch->bootstrap_path ? batch->bootstrap_path : "");
    }
    const struct transport_proc_spec spec = {.path = s->path,
                                             .argv = argv.v,
                                             .env = s->env.n > 0 ? s->env.v : environ,
                                             .input = s->transport->by_file ? NULL : text,
                                             .package = s->package,
                                             .talks = s->transport->talks};
    if (rc == 0 &&
        !(batch->proc = transport_proc_create(s->loop, s->reap, &spec, &events, batch)))
        err_spawn(err, "cannot run '%s'", s->path);
    secret_wipe(text, strlen(text));
    DL_APPEND(s->batches, batch);
    if (!batch->proc) {
        batch_destroy(batch);
        return NULL;
    }
    return batch;
}

static void run_together(const unsigned *nodes, size_t n, void *arg)
{
    struct node_starter *s = arg;
    struct ddp_err err;
    struct batch *batch = batch_create(s, nodes, n, &err);
    for (size_t i = 0; i < n; i++) {
        struct start *st = &s->starts[nodes[i]];
        st->batch = batch;
        st->tries++;
    }
    for (size_t i = 0; i < n && !batch; i++) {
        struct start *st = &s->starts[nodes[i]];
        OWNED char *line = xasprintf("%s: %s", host_of(st)->name, err.text);
        start_fail(st, line);
    }
}

/* Start all queued hosts, by as many processes as the transport needs. */
static void go_at_once(struct node_starter *s)
{
    OWNED unsigned *nodes = xcalloc(s->hosts->nhosts, sizeof *nodes);
    size_t n = 0;
    for (; s->first < s->hosts->nhosts; s->first++) {
        if (s->starts[s->first].state == START_QUEUED)
            nodes[n++] = s->first;
    }
    for (size_t i = 0; i < n; i++)
        start_move(&s->starts[nodes[i]], START_RUNS);
    transport_batches(s->transport, s->hosts, nodes, n, run_together, s);
}

void node_starter_go(struct node_starter *s)
{
    bool at_once = s->transport->at_once;
    if (s->going)
        return;
    s->going = true;
    while (at_once && s->first < s->hosts->nhosts && !s->stopped)
        go_at_once(s);
    while (s->first < s->hosts->nhosts && !s->stopped && s->starting < s->hosts->window) {
        struct start *st = &s->starts[s->first++];
        if (st->state != START_QUEUED)
            continue;
        start_move(st, START_RUNS);
        run_together(&st->node, 1, s);
    }
    s->going = false;
}

void node_starter_queue(struct node_starter *s, unsigned node)
{
    start_move(&s->starts[node], START_QUEUED);
    s->first = node < s->first ? node : s->first;
}

size_t node_starter_queue_below(struct node_starter *s, unsigned self)
{
    size_t first, n = tree_row_below(&s->row, s->hosts->width, self, &first);
    for (size_t i = 0; i < n; i++)
        node_starter_queue(s, s->row.nodes[first + i].node);
    return n;
}

bool node_starter_has_below(const struct node_starter *s, unsigned node)
{
    size_t first;
    return tree_row_below(&s->row, s->hosts->width, node, &first) > 0;
}

void node_starter_again(struct node_starter *s, unsigned node)
{
    struct start *st = &s->starts[node];
    if (st->batch && !s->transport->at_once) /* it may hang, as its host did */
        transport_proc_signal(st->batch->proc, SIGKILL);
    st->batch = NULL;
    free(st->doubt);
    st->doubt = NULL;
    st->follows = false;
    st->tries = 0;
    st->apart = true;
    node_starter_queue(s, node);
    node_starter_go(s);
}

/* --- connections -------------------------------------------------------------------- */

static bool on_accepted(unsigned node, int fd, const struct link_keys *keys,
                        const char *here, void *arg)
{
    struct node_starter *s = arg;
    if (node >= s->hosts->nhosts)
        return false;
    if (s->stopped || s->starts[node].state == START_FAILED) {
        close(fd); /* an agent of ours, too late: nothing to warn of */
        return true;
    }
    if (s->starts[node].state != START_RUNS)
        return false;
    start_move(&s->starts[node], START_JOINED);
    log_debug("%s has connected", s->hosts->hosts[node].name);
    s->events.joined(node, fd, keys, here, s->arg);
    node_starter_go(s);
    return true;
}

void node_starter_joined(struct node_starter *s, unsigned node)
{
    if (s->starts[node].state != START_RUNS)
        return;
    start_move(&s->starts[node], START_JOINED);
    node_starter_go(s);
}

void node_starter_tree(struct node_starter *s, unsigned width)
{
    s->width = width;
}

/* --- control ------------------------------------------------------------------------ */

/* For a host that was starting at the timeout. */
static char *missing_start(const struct start *st)
{
    const struct node_starter *s = st->starter;
    const char *name = host_of(st)->name;
    char last[300] = "";
    if (s->transport == &transport_ssh)
        return xasprintf(
            "%s: ssh has not connected in time: does 'ssh %s true' end, "
            "and can the agent reach us at '%s'? --start-timeout waits longer",
            name, name, s->calls.v[0]);
    if (st->batch)
        last_output_line(transport_proc_stderr(st->batch->proc), name, last, sizeof last);
    return xasprintf(
        "%s: started by %s, its agent has not connected in time%s%s%s; can it "
        "reach us at '%s'? --start-timeout waits longer",
        name, s->transport->name, last[0] ? " ('" : "", last, last[0] ? "')" : "",
        s->calls.v[0]);
}

char *node_starter_missing(const struct node_starter *s, unsigned node)
{
    const struct start *st = &s->starts[node];
    const char *name = s->hosts->hosts[node].name;
    switch (st->state) {
    case START_QUEUED:
        return xasprintf("%s: not started yet; --ssh-window starts more at once", name);
    case START_RUNS:
        return missing_start(st);
    case START_JOINED:
        return xasprintf("%s: its agent has connected, but sent nothing", name);
    case START_NOT: /* another agent starts it */
    case START_FAILED:
        break;
    }
    return xasprintf("%s: the agent that starts it has not reported", name);
}

bool node_starter_has_process(const struct node_starter *s, pid_t pid)
{
    const struct batch *batch;
    DL_FOREACH (s->batches, batch) {
        if (transport_proc_pid(batch->proc) == pid)
            return true;
    }
    return false;
}

bool node_starter_is_idle(const struct node_starter *s)
{
    return !s->batches;
}

void node_starter_close(struct node_starter *s)
{
    acceptor_destroy(s->acceptor);
    s->acceptor = NULL;
}

void node_starter_stop(struct node_starter *s)
{
    s->stopped = true;
    struct batch *batch;
    DL_FOREACH (s->batches, batch) {
        transport_proc_close_stdin(batch->proc);
        /* it may be waiting for a connection, without reading its stdin */
        if (count_in(batch, START_RUNS) + count_in(batch, START_FAILED) > 0)
            transport_proc_signal(batch->proc, SIGTERM);
    }
}

void node_starter_kill(struct node_starter *s)
{
    struct batch *batch;
    DL_FOREACH (s->batches, batch) {
        transport_proc_signal(batch->proc, SIGKILL);
    }
}

struct node_starter *node_starter_create(struct loop *loop, struct reap *reap,
                                         const struct transport *transport,
                                         const struct msg_hosts *hosts,
                                         const struct secret *key, const char *log_level,
                                         const struct node_starter_events *events,
                                         void *arg, struct ddp_err *err)
{
    struct node_starter *s = xcalloc(1, sizeof *s);
    *s = (struct node_starter){.loop = loop,
                               .reap = reap,
                               .transport = transport,
                               .hosts = hosts,
                               .key = *key,
                               .log_level = log_level,
                               .events = *events,
                               .arg = arg};
    s->starts = xcalloc(hosts->nhosts, sizeof *s->starts);
    for (unsigned i = 0; i < hosts->nhosts; i++)
        s->starts[i] = (struct start){.starter = s, .node = i};
    tree_row_init(&s->row, hosts);
    if (transport->environment)
        transport->environment(environ, &s->env);
    const struct acceptor_options where = {.expected = hosts->nhosts};
    s->path = transport_program(transport, hosts->ssh, err);
    bool ready =
        s->path && (!agent_is_pushed(hosts->agent) || (s->package = package_get(err)));
    if (ready && !(s->acceptor = acceptor_create(loop, key, &where, on_accepted, s, err)))
        err_prefix(err, "agents cannot call back");
    if (!s->acceptor) {
        node_starter_destroy(s);
        return NULL;
    }
    acceptor_addresses(s->acceptor, &s->calls);
    return s;
}

void node_starter_destroy(struct node_starter *s)
{
    if (!s)
        return;
    struct batch *batch, *next;
    DL_FOREACH_SAFE (s->batches, batch, next)
        batch_destroy(batch);
    for (unsigned i = 0; i < s->hosts->nhosts; i++) {
        loop_free(s->starts[i].timer);
        free(s->starts[i].doubt);
    }
    acceptor_destroy(s->acceptor);
    strv_finish(&s->calls);
    strv_finish(&s->env);
    secret_wipe(&s->key, sizeof s->key);
    free(s->path);
    free(s->stalled);
    tree_row_finish(&s->row);
    free(s->starts);
    free(s);
}
