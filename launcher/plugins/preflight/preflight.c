/* launcher/plugins/preflight/preflight.c - --preflight, on the launcher's side
 *
 * Agents are started as for a job, in the same way and as the same user. Instead of ranks
 * they run checks: first of the node, then of the connection to the next node. The
 * launcher compares the findings of all hosts, prints them as a table, and each problem
 * with its remedy as a line. The program is not run.
 */
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "launcher/job/plugin.h"
#include "launcher/plugins/preflight/results.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Deadline of a round; several checks may time out within it. */
enum { ROUND_MS = 90000 };

enum round { ROUND_START, ROUND_NODES, ROUND_NEIGHBOURS, ROUND_DONE };

struct preflight {
    struct job *job; /* borrowed */
    struct results *results;
    const char **names; /* owned; the names are the allocation's */
    enum round round;
    struct msg_probe request; /* owned */
    struct pre_node {
        bool probed, answered; /* in this round */
        bool timed_out; /* has missed a deadline: its answers no longer name a round */
        char *addr;     /* owned: where it listens; NULL */
        uint32_t port;
    } * nodes;           /* owned */
    struct event *timer; /* owned */
    int64_t created_ns;
};

static void preflight_next(struct preflight *p);

/* --- findings ----------------------------------------------------------------------- */

static void add(struct preflight *p, unsigned node, enum check_row check,
                struct msg_finding f)
{
    f.check = check;
    results_add(p->results, node, &f);
}

static void add_problem(struct preflight *p, unsigned node, enum check_row check,
                        char *problem)
{
    add(p, node, check, (struct msg_finding){.problem = problem});
}

/* `text` without a leading "NAME: ": the line names the host already. */
static const char *without_name(const char *text, const char *name)
{
    size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2
                                                                          : text;
}

static void set_addr(struct preflight *p, unsigned node, const char *key)
{
    char addr[64] = "";
    struct pre_node *pn = &p->nodes[node];
    const struct job_node *n = &p->job->nodes[node];
    if (sscanf(key, "%u %63s", &pn->port, addr) < 1 || pn->port > 65535)
        return;
    const char *link_addr = n->hello.addr      ? n->hello.addr
                            : n->host->local   ? p->job->here
                            : n->hello.addrs.n ? n->hello.addrs.v[0]
                                               : NULL;
    free(pn->addr);
    pn->addr = xstrdup(addr[0] ? addr : link_addr);
}

static int handle_finding(void *state, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    struct preflight *p = state;
    struct msg_finding *m = f->m;
    if (m->check == FINDING_END) {
        if (!p->nodes[node].timed_out)
            p->nodes[node].answered = true;
        preflight_next(p);
        return 0;
    }
    if (m->check >= CHECKS)
        return err_set(err, "a finding of an unknown check");
    if (m->key && m->check == CHECK_NETWORK) {
        set_addr(p, node, m->key);
        return 0;
    }
    /* sent: its wall clock minus its monotonic one; kept: minus our wall clock */
    if (m->check == CHECK_CLOCK && !m->problem)
        m->number += p->job->nodes[node].ahead_ns - (wall_ns() - now_ns());
    results_add(p->results, node, m);
    return 0;
}

/* --- rounds ------------------------------------------------------------------------- */

static bool is_connected(const struct preflight *p, unsigned node)
{
    return job_node_connected(&p->job->nodes[node]);
}

static void send_probe(struct preflight *p, unsigned node)
{
    p->nodes[node].probed = true;
    p->nodes[node].answered = false;
    job_send(p->job, node, MSG_PROBE, &p->request);
}

static void probe_nodes(struct preflight *p)
{
    p->request.phase = PROBE_NODE;
    for (unsigned i = 0; i < p->job->alloc->nnodes; i++) {
        if (is_connected(p, i))
            send_probe(p, i);
    }
}

/* Each node connects to the next joined one that listens, the last node to the first. A
 * node that missed a deadline is not probed again. */
static void probe_neighbours(struct preflight *p)
{
    unsigned n = (unsigned)p->job->alloc->nnodes;
    strv_finish(&p->request.argv);
    strv_finish(&p->request.env);
    p->request.phase = PROBE_NEIGHBOUR;
    for (unsigned i = 0; i < n; i++) {
        if (!is_connected(p, i) || p->nodes[i].timed_out)
            continue;
        unsigned next = (i + 1) % n;
        while (next != i && (!is_connected(p, next) || !p->nodes[next].addr))
            next = (next + 1) % n;
        if (next == i)
            continue;
        p->request.peer = (char *)(uintptr_t)p->names[next];
        bool named = next == p->request.master && p->job->opts->master_addr;
        p->request.addr =
            named ? (char *)(uintptr_t)p->job->opts->master_addr : p->nodes[next].addr;
        p->request.port = p->nodes[next].port;
        send_probe(p, i);
    }
    p->request.peer = p->request.addr = NULL; /* borrowed */
}

static void preflight_finish(struct preflight *p)
{
    struct job *j = p->job;
    SCOPED(strv_finish) struct strv lines = {0};
    size_t all = 0;
    results_judge(p->results);
    results_table(p->results, stdout);
    if (fflush(stdout) != 0) {
        job_say(j, "ddprun: cannot write the table to stdout: %s", strerror(errno));
        j->verdict = 1;
    }
    size_t faults = results_problems(p->results, &lines);
    for (size_t i = 0; i < lines.n; i++)
        job_say(j, "ddprun: %s", lines.v[i]);
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        all += j->nodes[i].wanted;
    if (faults > 0) {
        j->verdict = 1;
        job_say(j, "ddprun: preflight: %zu problem%s on %zu of %zu host%s", faults,
                faults == 1 ? "" : "s", results_faulty(p->results), all,
                all == 1 ? "" : "s");
    }
    job_end(j, SIGTERM, 0);
}

static bool all_answered(const struct preflight *p)
{
    for (unsigned i = 0; i < p->job->alloc->nnodes; i++) {
        if (p->nodes[i].probed && !p->nodes[i].answered && is_connected(p, i))
            return false;
    }
    return true;
}

static void preflight_next(struct preflight *p)
{
    static void (*const begin[])(struct preflight * p) = {
        [ROUND_NODES] = probe_nodes,
        [ROUND_NEIGHBOURS] = probe_neighbours,
        [ROUND_DONE] = preflight_finish,
    };
    while (p->job->state == JOB_PREPARING && p->round < ROUND_DONE && all_answered(p)) {
        loop_arm(p->timer, ROUND_MS);
        for (unsigned i = 0; i < p->job->alloc->nnodes; i++)
            p->nodes[i].probed = false;
        begin[++p->round](p);
    }
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct preflight *p = arg;
    for (unsigned i = 0; i < p->job->alloc->nnodes; i++) {
        struct pre_node *pn = &p->nodes[i];
        if (!pn->probed || pn->answered || !is_connected(p, i))
            continue;
        pn->answered = pn->timed_out = true;
        add_problem(
            p, i, CHECK_AGENT,
            xasprintf("has not finished its checks within %d s; is it overloaded?",
                      ROUND_MS / 1000));
    }
    preflight_next(p);
}

/* --- hooks -------------------------------------------------------------------------- */

static void preflight_joined(void *state, unsigned node)
{
    struct preflight *p = state;
    const struct job_node *n = &p->job->nodes[node];
    if (n->via != p->job->local)
        add(p, node, CHECK_REACHED,
            (struct msg_finding){.number = now_ns() - p->created_ns});
    struct msg_finding f = {.value = xasprintf("version %s", n->hello.version)};
    if (strcmp(n->hello.version, DDPRUN_VERSION) != 0)
        f.problem = xasprintf("is of version %s, and ddprun here of %s; install one "
                              "version everywhere",
                              n->hello.version, DDPRUN_VERSION);
    add(p, node, CHECK_AGENT, f);
}

/* A joined host was lost: reported in the table; the other hosts continue. */
static void preflight_lost(void *state, unsigned node, const char *why)
{
    struct preflight *p = state;
    if (p->job->state != JOB_PREPARING)
        return;
    add_problem(p, node, CHECK_AGENT, xasprintf("is lost: %s", why));
    preflight_next(p);
}

static void fill_request(struct preflight *p)
{
    struct job *j = p->job;
    struct msg_probe *m = &p->request;
    strv_push_all(&m->argv, j->job.argv.v);
    strv_push_all(&m->env, j->job.env.v);
    m->wdir = xstrdup(j->job.wdir);
    m->interface = xstrdup(j->opts->interface);
    m->store_port = (uint32_t)j->opts->store_port;
    for (unsigned i = 0; i < j->alloc->nnodes; i++)
        strv_push(&m->names, j->nodes[i].wanted ? p->names[i] : "");
    /* rank 0 is on the first host with ranks */
    while (m->master + 1 < j->alloc->nnodes && !j->nodes[m->master].wanted)
        m->master++;
    for (unsigned i = 0; j->plan && i < j->alloc->nnodes; i++) {
        if (j->nodes[i].place == 0)
            m->master = i;
    }
}

static void preflight_run(void *state)
{
    struct preflight *p = state;
    struct job *j = p->job;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].trouble)
            add_problem(p, i, CHECK_REACHED,
                        xstrdup(without_name(j->nodes[i].trouble, p->names[i])));
    }
    fill_request(p);
    unsigned far;
    OWNED char *why = j->opts->master_addr ? job_unreachable(j, p->request.master,
                                                             j->opts->master_addr, &far)
                                           : NULL;
    if (why)
        add_problem(p, far, CHECK_NETWORK, xasprintf("ranks there %s", why));
    preflight_next(p);
}

static int preflight_init(void *state, struct ddp_err *err)
{
    struct preflight *p = state;
    struct job *j = p->job;
    if (!j->opts->preflight)
        return 1;
    p->created_ns = now_ns();
    p->names = xcalloc(j->alloc->nnodes, sizeof *p->names);
    p->nodes = xcalloc(j->alloc->nnodes, sizeof *p->nodes);
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        p->names[i] = j->alloc->nodes[i].name;
    p->results = results_create(p->names, j->alloc->nnodes);
    job_replace_ranks(j, &preflight_job);
    return 0;
}

static int preflight_open(void *state, struct ddp_err *err)
{
    struct preflight *p = state;
    p->timer = loop_timer(p->job->loop, on_timeout, p);
    return 0;
}

static void preflight_fini(void *state)
{
    struct preflight *p = state;
    loop_free(p->timer);
    results_destroy(p->results);
    for (size_t i = 0; i < p->job->alloc->nnodes; i++)
        free(p->nodes[i].addr);
    free(p->nodes);
    free(p->names);
    msg_probe_finish(&p->request);
}

static const struct job_message messages[] = {{MSG_FINDING, handle_finding}, {0}};

const struct job_plugin preflight_job = {
    .name = "preflight",
    .state_size = sizeof(struct preflight),
    .init = preflight_init,
    .open = preflight_open,
    .fini = preflight_fini,
    .node_joined = preflight_joined,
    .node_lost = preflight_lost,
    .run = preflight_run,
    .messages = messages,
};
