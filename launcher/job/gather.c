/* launcher/job/gather.c - agents are started, until all have joined or failed
 *
 * If slots are still unknown, every agent reports its GPU count, and the plan follows.
 * Start-up failures are collected for SETTLE_MS and reported together.
 */
#define LOG_SUBSYS "start"
#include "launcher/job/gather.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/job/attempt.h"
#include "launcher/job/describe.h"
#include "launcher/job/heartbeat.h"
#include "launcher/job/hooks.h"
#include "launcher/job/hosts.h"
#include "launcher/job/io.h"
#include "launcher/job/losses.h"
#include "launcher/job/nodes.h"
#include "launcher/job/report.h"
#include "launcher/job/spares.h"
#include "launcher/job/states.h"
#include "launcher/transport/node_starter.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>

/* Has every node joined or failed, or is not wanted? */
static bool settled(struct job *j)
{
    for (; j->gathering.settled < j->alloc->nnodes; j->gathering.settled++) {
        const struct job_node *n = &j->nodes[j->gathering.settled];
        if (n->wanted && !n->trouble && (!n->joined || n->holds > 0))
            return false;
    }
    return true;
}

/* The node to name when the job ends because nodes cannot be started: the first of the
 * allocation, but one whose failure may follow from another's only if there is no other.
 * nnodes: none. */
static size_t first_trouble(const struct job *j)
{
    size_t first = j->alloc->nnodes;
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        const struct job_node *n = &j->nodes[i];
        bool ends_job = n->trouble && (j->alloc->changes || !job_is_spare(j, i));
        if (ends_job && !n->follows)
            return i;
        if (ends_job && first == j->alloc->nnodes)
            first = i;
    }
    return first;
}

/* Nodes that have neither joined nor failed have not started in time. */
static void blame_missing(struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        struct job_node *n = &j->nodes[i];
        if (n->wanted && !n->joined && !n->trouble)
            n->trouble = j->starter
                             ? node_starter_missing(j->starter, i)
                             : xasprintf("%s: connected, but did not identify itself",
                                         n->host->name);
    }
}

static void fail(struct job *j, size_t node)
{
    char *text = job_merge_start_failures(j, node);
    /* also those below a failed one in the tree */
    unsigned open = COUNT_NODES(j, n, n->wanted && !n->joined && !n->trouble);
    if (open > 0) {
        OWNED char *known = text;
        text = xasprintf("%s; %u more host%s not answered yet", known, open,
                         open == 1 ? " has" : "s have");
    }
    job_fail_text(j, CAUSE_CANNOT, EXIT_CANNOT_START, text);
}

static int by_gpus(const void *a, const void *b)
{
    const struct job_node *x = *(const struct job_node *const *)a;
    const struct job_node *y = *(const struct job_node *const *)b;
    uint64_t p = x->hello.gpus_id, q = y->hello.gpus_id;
    return p != q ? (p > q) - (p < q) : (x > y) - (x < y);
}

/* One host under two names is two nodes. Without GPUs nothing is wrong with that: several
 * hosts are simulated so. Instances that were started separately may want it. */
static void warn_of_shared_gpus(const struct job *j)
{
    OWNED const struct job_node **nodes = xcalloc(j->alloc->nnodes, sizeof *nodes);
    size_t n = 0;
    EACH_NODE (j, node) {
        if (node->place >= 0 && node->hello.gpus_id && !j->peers)
            nodes[n++] = node;
    }
    qsort(nodes, n, sizeof *nodes, by_gpus);
    const struct job_node *const *first = NULL;
    size_t more = 0;
    for (size_t i = 1; i < n; i++) {
        bool same = nodes[i]->hello.gpus_id == nodes[i - 1]->hello.gpus_id;
        more += same && first;
        first = same && !first ? &nodes[i - 1] : first;
    }
    OWNED char *others = more ? xasprintf(" (and %zu more)", more) : xstrdup("");
    if (first)
        log_warn(
            "'%s' and '%s'%s are one host: both have a rank with LOCAL_RANK 0, which "
            "use the same GPU; name it once, with all its slots",
            first[0]->host->name, first[1]->host->name, others);
}

/* Every agent has joined: the ranks can be placed, if they are not yet. */
static void job_place(struct job *j)
{
    struct ddp_err err;
    if (j->starter && !job_may_gain(j))
        node_starter_close(j->starter);
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].joined)
            alloc_resolve(j->alloc, i, (int)j->nodes[i].hello.ngpus);
    }
    int code = !j->plan && job_make_plan(j, &err) < 0 ? EXIT_USAGE
               : job_open_streams(j, &err) < 0 || job_await_peers(j, &err) < 0
                   ? EXIT_CANNOT_START
                   : 0;
    if (code != 0) {
        job_fail_text(j, CAUSE_CANNOT, code, xstrdup(err.text));
        return;
    }
    warn_of_shared_gpus(j);
    job_warn_spares(j);
    job_move(j, JOB_PREPARING, "every agent has joined");
    job_prepare(j);
}

void job_check_gathering(struct job *j)
{
    if (j->state != JOB_GATHERING || !settled(j))
        return;
    size_t trouble = first_trouble(j);
    if (j->instead) {
        job_move(j, JOB_PREPARING, "every agent has joined or failed");
        job_plugins_run(j);
    } else if (trouble < j->alloc->nnodes && !job_go_without(j)) {
        fail(j, trouble);
    } else {
        job_place(j);
    }
}

static void on_settle(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    size_t trouble = first_trouble(j);
    if (j->state != JOB_GATHERING || trouble == j->alloc->nnodes || job_survives_start(j))
        return;
    if (j->nodes[trouble].follows) /* the others wait for one that is silent */
        blame_missing(j);
    fail(j, first_trouble(j));
}

static void on_failed(unsigned node, const char *line, bool follows, void *arg)
{
    struct job *j = arg;
    j->nodes[node].follows = follows;
    job_node_failed(j, node, line);
}

/* An agent could not start one below it. ssh may work from here, where the keys are. */
void job_unreached(struct job *j, unsigned node, const char *line)
{
    struct job_node *n = &j->nodes[node];
    if (j->state != JOB_GATHERING || n->joined)
        return;
    if (n->tried_from_here) {
        job_node_failed(j, node, line);
        return;
    }
    log_info("%s; trying from this host", line);
    n->tried_from_here = true;
    node_starter_queue(j->starter, node);
    node_starter_go(j->starter);
}

void job_node_joined(struct job *j, unsigned node, struct link *l,
                     struct msg_hello *hello)
{
    struct job_node *n = &j->nodes[node];
    bool late = j->state > JOB_GATHERING;
    if (late && (!n->late || (j->state >= JOB_TERMINATING && !j->restart.pending))) {
        if (!n->via) /* the launch has failed; else it gets the SHUTDOWN to all */
            link_send_msg(l, node, MSG(shutdown, 0));
        return;
    }
    n->via = l;
    n->joined = true;
    n->hello = *hello;
    n->heard_ms = now_ms();
    *hello = (struct msg_hello){0};
    log_debug("%s (%s) has joined: version %s, %u CPUs, %u GPUs, at %s", n->host->name,
              n->hello.hostname, n->hello.version, n->hello.ncpus, n->hello.ngpus,
              n->hello.addr ? n->hello.addr : "this machine");
    if (j->starter)
        node_starter_joined(j->starter, node);
    if (l != j->local)                           /* it has our clock */
        n->ahead_ns = n->hello.at_ns - now_ns(); /* until a reply to a ping is better */
    if (job_is_direct(j, node))
        job_ping(j, node);
    JOB_HOOKS(j, node_joined, node);
    if (late)
        job_host_joined(j, node);
    else
        job_check(j);
}

int64_t job_limit_gathering(const struct job *j)
{
    return j->opts->start_timeout_ms;
}

void job_late_gathering(struct job *j)
{
    blame_missing(j);
    job_check(j);
}

/* --- ddprun starts the agents ------------------------------------------------------- */

static void on_joined(unsigned node, int fd, const struct link_keys *keys,
                      const char *here, void *arg)
{
    struct job *j = arg;
    if (!j->here && here[0])
        j->here = xstrdup(here);
    struct link *l = job_add_link(j, fd, keys, node);
    if (!j->nodes[node].late && node_starter_has_below(j->starter, node))
        link_send_msg(l, node, MSG_HOSTS, &j->hosts);
}

static void on_lost(unsigned node, const char *why, void *arg)
{
    struct job *j = arg;
    if (j->state < JOB_LEAVING)
        job_node_lost(j, node, why);
}

static void on_idle(void *arg)
{
    job_check(arg);
}

int job_gather(struct job *j, struct ddp_err *err)
{
    static const struct node_starter_events events = {on_joined, on_failed, on_lost,
                                                      on_idle};
    job_move(j, JOB_GATHERING, "starting agents on other hosts");
    j->gathering.settle = loop_timer(j->loop, on_settle, j);
    job_hosts(j, &j->hosts);
    if (secret_make(&j->gathering.key, err) < 0)
        return -1;
    j->starter = node_starter_create(j->loop, j->reap, j->transport, &j->hosts,
                                     &j->gathering.key, j->log_level, &events, j, err);
    if (!j->starter)
        return -1;
    if (!j->transport->tree)
        node_starter_tree(j->starter, (unsigned)j->opts->tree_width);
    size_t n = node_starter_queue_below(j->starter, TREE_ROOT);
    node_starter_go(j->starter);
    log_debug("starting %zu agents from here, by %s", n, j->transport->name);
    return 0;
}

/* --- the nodes have connected by themselves ----------------------------------------- */

/* Our address that most peers have connected to; malloc'ed. */
static char *common_address(const struct peers *p)
{
    const char *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t same = 0;
        for (size_t k = 0; p->list[i].here && k < p->n; k++)
            same += p->list[k].here && strcmp(p->list[i].here, p->list[k].here) == 0;
        if (same > most) {
            most = same;
            best = p->list[i].here;
        }
    }
    if (best && most + 1 < p->n)
        log_warn("%zu of %zu peers have connected to %s, the others to another address: "
                 "choose one network with --interface",
                 most, p->n - 1, best);
    return xstrdup(best);
}

void job_take_peers(struct job *j)
{
    job_move(j, JOB_GATHERING, "all nodes have connected by themselves");
    j->gathering.settle = loop_timer(j->loop, on_settle, j);
    j->here = common_address(j->peers);
    for (size_t i = 0; i < j->peers->n; i++) {
        struct peer *p = &j->peers->list[i];
        if (p->fd < 0)
            continue; /* our own */
        j->nodes[i].via = job_add_link(j, p->fd, &p->keys, (unsigned)i);
        j->nodes[i].heard_ms = now_ms();
        p->fd = -1;
    }
}

void job_gather_close(struct job *j)
{
    loop_free(j->gathering.settle);
    secret_wipe(&j->gathering.key, sizeof j->gathering.key);
    free(j->here);
}
