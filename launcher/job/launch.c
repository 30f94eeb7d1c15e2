/* launcher/job/launch.c - from the allocation to running ranks
 *
 * If all slots are known, the plan is made first and agents are started on its nodes
 * only. Otherwise, and when the nodes connect by themselves, every agent reports its GPU
 * count and the plan follows. Then the node of rank 0 binds the store's port, and all
 * nodes get the job and their node assignments.
 *
 * Start-up failures are collected for SETTLE_MS and reported together.
 */
#define LOG_SUBSYS "start"
#include "launcher/job/job_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/installed.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/agent.h"
#include "launcher/envfwd.h"
#include "launcher/job/job.h"
#include "launcher/link/rankmap.h"
#include "launcher/place/bind.h"
#include "launcher/transport/node_starter.h"
#include "launcher/transport/package.h"
#include "launcher/transport/program.h"
#include "launcher/transport/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

extern char **environ;

/* from the first failed host to the report: others may still fail */
enum { SETTLE_MS = 3000 };

/* --- what is to be run -------------------------------------------------------------- */

static char *make_id(void)
{
    uint32_t r[2];
    if (getrandom(r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r)
        memcpy(r, &(uint64_t){(uint64_t)now_ns() ^ (uint64_t)getpid()}, sizeof r);
    return xasprintf("%08x%08x", r[0], r[1]);
}

int job_choose_transport(struct job *j, struct ddp_err *err)
{
    j->transport = transport_choose(j->opts->start, j->alloc->source, j->transport_why,
                                    sizeof j->transport_why, err);
    if (j->transport && !j->transport->talks && j->opts->agent &&
        agent_is_pushed(j->opts->agent))
        return err_set(
            err,
            "--agent push needs ssh, but agents on these hosts are started by %s: "
            "use --start ssh, or install ddprun there",
            j->transport->name);
    return j->transport ? 0 : -1;
}

/* A job on this machine alone forks its agent, unless --start asks for a transport. */
bool job_forks_agent(const struct job *j, size_t node)
{
    bool alone = j->alloc->nnodes == 1 && j->opts->start == BY_DEFAULT;
    return j->alloc->nodes[node].local && (alone || !j->transport->at_once);
}

bool job_is_local(const struct job *j)
{
    return j->alloc->nnodes == 1 && job_forks_agent(j, 0) && !j->instead;
}

static void keep_user_set(struct msg_job *job)
{
    struct strv env = {0};
    for (size_t i = 0; i < job->user_set.n; i++) {
        const char *name = job->user_set.v[i], *value = strv_env_get(&job->env, name);
        if (value)
            strv_pushf(&env, "%s=%s", name, value);
    }
    strv_finish(&job->env);
    job->env = env;
}

int job_describe(struct job *j, struct ddp_err *err)
{
    const struct opts *o = j->opts;
    struct strv missing = {0};
    bool travels = !job_is_local(j);
    envfwd_collect(environ, &o->export_env, travels, &j->job.env, &j->job.user_set,
                   &missing);
    for (size_t i = 0; i < missing.n; i++)
        log_warn("-x %s: not set here, so there is nothing to export", missing.v[i]);
    strv_finish(&missing);
    if (j->peers && travels) /* each node has an environment of its own */
        keep_user_set(&j->job);
    strv_push_all(&j->job.argv, o->argv);
    for (size_t i = 0; i < o->apps.n; i++)
        strv_push(&j->job.apps, o->apps.v[i]);
    /* $PWD, with symbolic links unresolved: other hosts may have only that path */
    j->job.wdir = o->wdir ? realpath(o->wdir, NULL) : get_current_dir_name();
    if (!j->job.wdir && o->wdir)
        j->job.wdir = xstrdup(o->wdir); /* it may exist on the nodes only */
    if (!j->job.wdir)
        return err_errno(err, "cannot determine the current directory");
    j->job.id = make_id();
    j->job.master_addr = xstrdup("");
    j->job.interface = xstrdup(o->interface);
    j->job.preload = xstrdup(o->preload);
    j->job.rank_names = o->rank_names;
    j->job.store_mode = o->store;
    j->job.bind_to = o->bind_to;
    j->job.input = o->input;
    j->job.mpi = o->mpi;
    j->job.env_complete = !travels;
    j->job.report = o->report;
    j->job.max_restarts = (uint32_t)(o->max_restarts + o->spares);
    return 0;
}

/* Of the host names in tags; 0 on a single host, which has none. */
static int widest_host(const struct plan *plan)
{
    size_t widest = 0;
    for (int p = 0; p < plan->nnodes && plan->nnodes > 1; p++) {
        size_t len = strlen(plan->nodes[p].host->name);
        widest = len > widest ? len : widest;
    }
    return (int)widest;
}

/* With all slots known: the plan, and each node's part of it. */
static int make_plan(struct job *j, struct ddp_err *err)
{
    j->plan = job_plugins_plan(j, err) < 0 ? NULL : plan_make(j->opts, j->alloc, err);
    if (!j->plan || output_check(j->opts, j->plan->nranks, err) < 0 ||
        output_check_files(j->opts, j->plan->nranks, job_host_of, j, err) < 0) {
        plan_destroy(j->plan);
        j->plan = NULL; /* it has no j->ranks */
        return -1;
    }
    j->ranks = xcalloc((size_t)j->plan->nranks, sizeof *j->ranks);
    j->running = j->plan->nranks;
    j->job.nranks = (uint32_t)j->plan->nranks;
    j->job.columns =
        (uint32_t)output_columns(j->opts, j->plan->nranks, widest_host(j->plan));
    j->job.nnodes = (uint32_t)j->plan->nnodes;
    for (int p = 0; p < j->plan->nnodes; p++)
        j->nodes[j->plan->nodes[p].host - j->alloc->nodes].place = p;
    job_make_map(j);
    return 0;
}

void job_make_map(struct job *j)
{
    for (int p = 0; p < j->plan->nnodes; p++)
        rankmap_push(&j->job.map, j->plan->nodes[p].host->name, j->plan->nodes[p].ranks,
                     j->plan->nodes[p].nlocal);
}

int job_plan(struct job *j, struct ddp_err *err)
{
    /* not yet with peers: an error could not be sent to them before they connect */
    bool known = !j->peers || job_is_local(j);
    if (job_is_local(j))
        alloc_resolve(j->alloc, 0, topo_gpus());
    for (size_t i = 0; i < j->alloc->nnodes && !job_is_local(j); i++)
        known &= j->alloc->nodes[i].slots > 0;
    if (known && make_plan(j, err) < 0)
        return -1;
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        j->nodes[i].wanted = !known || j->nodes[i].place >= 0 || job_is_spare(j, i);
    return 0;
}

void job_share_of(const struct job *j, int place, struct msg_share *share)
{
    const struct plan_node *pn = &j->plan->nodes[place];
    *share = (struct msg_share){.host = xstrdup(pn->host->name),
                                .node_rank = (uint32_t)place,
                                .nlocal = (uint32_t)pn->nlocal};
    share->ranks = xcalloc(share->nlocal, sizeof *share->ranks);
    for (int i = 0; i < pn->nlocal; i++) {
        int r = pn->ranks[i];
        share->ranks[i] =
            (struct share_rank){.rank = (uint32_t)r,
                                .cross_rank = (uint32_t)j->plan->ranks[r].cross_rank,
                                .cross_size = (uint32_t)plan_cross_size(j->plan, r)};
    }
}

/* --- gathering ---------------------------------------------------------------------- */

static char *agent_path(const struct opts *o)
{
    if (o->agent)
        return xstrdup(o->agent);
    char *ours = installed_file(INSTALLED_PROGRAM, "ddprun-agent", X_OK),
         *real = ours ? realpath(ours, NULL) : NULL;
    free(ours);
    return real ? real : installed_default(INSTALLED_PROGRAM, "ddprun-agent");
}

void job_hosts(const struct job *j, struct msg_hosts *hosts)
{
    const struct opts *o = j->opts;
    bool flat = o->tree_width == 0 || !j->transport->tree;
    *hosts = (struct msg_hosts){.width = flat ? NODES_MAX : (uint32_t)o->tree_width,
                                .window = (uint32_t)o->ssh_window,
                                .timeout_ms = (uint32_t)o->start_timeout_ms,
                                .agent = agent_path(o),
                                .ssh = xstrdup(o->ssh ? o->ssh : "ssh"),
                                .nhosts = (uint32_t)j->alloc->nnodes};
    hosts->hosts = xcalloc(hosts->nhosts, sizeof *hosts->hosts);
    for (uint32_t i = 0; i < hosts->nhosts; i++) {
        const struct alloc_node *n = &j->alloc->nodes[i];
        hosts->hosts[i] =
            (struct host){.name = xstrdup(n->name),
                          .user = xstrdup(n->user),
                          .port = (uint32_t)n->port,
                          .started = job_forks_agent(j, i) || !j->nodes[i].wanted};
    }
}

/* Has every node joined or failed, or is not wanted? */
static bool settled(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        const struct job_node *n = &j->nodes[i];
        if (n->wanted && !n->joined && !n->trouble)
            return false;
    }
    return true;
}

/* Of a spare it ends nothing. */
static const char *first_trouble(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].trouble && !job_is_spare(j, i))
            return j->nodes[i].trouble;
    }
    return NULL;
}

static void job_place(struct job *j);

/* Called after each node that joined or failed. */
static void gather_check(struct job *j)
{
    const char *trouble = first_trouble(j);
    if (j->state != JOB_GATHERING || !settled(j))
        return;
    if (j->instead) {
        job_move(j, JOB_PREPARING, "every agent has joined or failed");
        job_plugins_run(j);
    } else if (trouble)
        job_fail_text(j, CAUSE_CANNOT, EXIT_CANNOT_START,
                      xasprintf("cannot start on %s", trouble));
    else
        job_place(j);
}

static void on_settle(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    const char *trouble = first_trouble(j);
    if (j->state == JOB_GATHERING && trouble)
        job_fail_text(j, CAUSE_CANNOT, EXIT_CANNOT_START,
                      xasprintf("cannot start on %s", trouble));
}

static void node_failed(struct job *j, unsigned node, const char *line)
{
    struct job_node *n = &j->nodes[node];
    if (j->state != JOB_GATHERING || n->trouble)
        return; /* a lost link is reported by job_node_lost() */
    n->trouble = xstrdup(line);
    if (!j->instead) /* that plug-in waits for every host */
        job_arm(j->settle, SETTLE_MS);
    gather_check(j);
}

static void on_failed(unsigned node, const char *line, void *arg)
{
    node_failed(arg, node, line);
}

/* An agent could not start one below it. ssh may work from here (keys that exist on the
 * front end only). */
void job_unreached(struct job *j, unsigned node, const char *line)
{
    struct job_node *n = &j->nodes[node];
    if (j->state != JOB_GATHERING || n->joined)
        return;
    if (n->tried_from_here) {
        node_failed(j, node, line);
        return;
    }
    log_info("%s; trying from this host", line);
    n->tried_from_here = true;
    node_starter_queue(j->starter, node);
    node_starter_go(j->starter);
}

void job_start_failed(struct job *j, unsigned node, const char *why)
{
    char *line = xasprintf("%s: the agent broke off while it was starting: %s",
                           j->nodes[node].host->name, why);
    node_failed(j, node, line);
    free(line);
}

int64_t job_limit_gathering(const struct job *j)
{
    return j->opts->start_timeout_ms;
}

void job_late_gathering(struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        struct job_node *n = &j->nodes[i];
        if (n->wanted && !n->joined && !n->trouble)
            n->trouble = j->starter
                             ? node_starter_missing(j->starter, i)
                             : xasprintf("%s: connected, but did not identify itself",
                                         n->host->name);
    }
    gather_check(j);
}

static void on_joined(unsigned node, int fd, const struct link_keys *keys,
                      const char *here, void *arg)
{
    struct job *j = arg;
    if (!j->here && here[0])
        j->here = xstrdup(here);
    struct link *l = job_add_link(j, fd, keys, node);
    if (tree_below(&j->hosts, node, NULL, NULL) > 0)
        link_send_msg(l, node, MSG_HOSTS, &j->hosts);
}

static void on_idle(void *arg)
{
    job_check(arg);
}

static void start_one(unsigned node, void *arg)
{
    struct job *j = arg;
    j->nodes[node].tried_from_here = true;
    node_starter_queue(j->starter, node);
}

int job_gather(struct job *j, struct ddp_err *err)
{
    static const struct node_starter_events events = {on_joined, on_failed, on_idle};
    job_move(j, JOB_GATHERING, "starting agents on other hosts");
    struct event_base *base = loop_base(j->loop);
    j->settle = evtimer_new(base, on_settle, j);
    if (!j->settle)
        return err_set(err, "cannot make an event");
    job_hosts(j, &j->hosts);
    if (secret_make(&j->key, err) < 0)
        return -1;
    j->starter = node_starter_create(j->loop, j->reap, j->transport, &j->hosts, &j->key,
                                     job_log_level(j->opts), &events, j, err);
    if (!j->starter)
        return -1;
    if (!j->transport->tree)
        node_starter_tree(j->starter, (unsigned)j->opts->tree_width);
    unsigned n = tree_below(&j->hosts, TREE_ROOT, start_one, j);
    node_starter_go(j->starter);
    log_debug("starting %u agents from here, by %s", n, j->transport->name);
    return 0;
}

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

int job_take_peers(struct job *j, struct ddp_err *err)
{
    job_move(j, JOB_GATHERING, "all nodes have connected by themselves");
    struct event_base *base = loop_base(j->loop);
    j->settle = evtimer_new(base, on_settle, j);
    if (!j->settle)
        return err_set(err, "cannot make an event");
    j->here = common_address(j->peers);
    for (size_t i = 0; i < j->peers->n; i++) {
        struct peer *p = &j->peers->list[i];
        if (p->fd < 0)
            continue; /* our own */
        j->nodes[i].via = job_add_link(j, p->fd, &p->keys, (unsigned)i);
        j->nodes[i].heard_ms = now_ms();
        p->fd = -1;
    }
    return 0;
}

/* --- all agents have joined --------------------------------------------------------- */

void job_node_joined(struct job *j, unsigned node, struct link *l,
                     struct msg_hello *hello)
{
    struct job_node *n = &j->nodes[node];
    if (j->state > JOB_GATHERING) { /* too late: the launch has failed */
        if (!n->via)                /* else it gets the SHUTDOWN to all */
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
    job_ping(j, node);
    JOB_HOOKS(j, node_joined, node);
    gather_check(j);
}

static void job_place(struct job *j)
{
    struct ddp_err err;
    event_del(j->settle);
    if (j->starter)
        node_starter_close(j->starter);
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].joined)
            alloc_resolve(j->alloc, i, (int)j->nodes[i].hello.ngpus);
    }
    job_warn_spares(j);
    int code = !j->plan && make_plan(j, &err) < 0 ? EXIT_USAGE
               : job_open_streams(j, &err) < 0    ? EXIT_CANNOT_START
                                                  : 0;
    if (code != 0) {
        job_fail_text(j, CAUSE_CANNOT, code, xstrdup(err.text));
        return;
    }
    job_move(j, JOB_PREPARING, "every agent has joined");
    job_prepare(j);
}

void job_prepare(struct job *j)
{
    j->holds = 1;
    JOB_HOOKS(j, prepare);
    job_release(j);
}

static void send_assignments(struct job *j)
{
    job_send(j, NODE_ALL, MSG_JOB, &j->job);
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        struct msg_share share;
        int place = j->nodes[i].place;
        bool standby = place < 0 && job_is_spare(j, i);
        if (place < 0 && !standby)
            continue;
        JOB_HOOKS(j, node_orders, i);
        job_share_of(j, standby ? j->plan->nnodes - 1 : place, &share);
        share.standby = standby;
        job_send(j, i, MSG_SHARE, &share);
        msg_share_finish(&share);
    }
}

static void send_restart(struct job *j)
{
    bool moved = false;
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        moved |= j->nodes[i].replaces;
    job_send(j, NODE_ALL,
             MSG(restart, .attempt = (uint32_t)j->restart.attempt,
                 .addr = j->job.master_addr, .port = j->job.master_port,
                 .rank0_port = j->job.rank0_port,
                 .map = moved ? j->job.map : (struct strv){0}));
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        struct job_node *n = &j->nodes[i];
        struct msg_share share;
        n->ended = false;
        if (!n->replaces)
            continue;
        n->replaces = false;
        JOB_HOOKS(j, node_orders, i);
        job_share_of(j, n->place, &share);
        job_send(j, i, MSG_SHARE, &share);
        msg_share_finish(&share);
    }
}

void job_hold(struct job *j)
{
    j->holds++;
}

void job_release(struct job *j)
{
    if (j->state != JOB_PREPARING || --j->holds > 0)
        return;
    if (j->restart.attempt > 0)
        send_restart(j);
    else
        send_assignments(j);
    job_started(j, "every node has its assignment");
}
