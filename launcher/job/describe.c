/* launcher/job/describe.c - what is to be run, and where: before anything is started
 *
 * The job's description, which is the same for all nodes; how agents get to other hosts;
 * and, if all slots are known, the plan: agents are then started on its nodes only.
 */
#define LOG_SUBSYS "start"
#include "launcher/job/describe.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/installed.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock_addr.h"
#include "launcher/envfwd.h"
#include "launcher/job/hooks.h"
#include "launcher/job/job_shape.h"
#include "launcher/job/report.h"
#include "launcher/job/terminal.h"
#include "launcher/place/bind.h"
#include "launcher/transport/package.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

extern char **environ;

/* restarts that TORCHELASTIC_MAX_RESTARTS has where their number is not limited */
enum { MANY = 1000 };

/* --- how ---------------------------------------------------------------------------- */

static void warn_of_ssh_options(const struct job *j)
{
    static const char *const names[] = {"ssh", "ssh-window"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (opts_given(j->opts, names[i]))
            log_warn("--%s has no effect: agents are started by %s (%s)", names[i],
                     j->transport->name, j->transport_why);
    }
}

int job_choose_transport(struct job *j, struct ddp_err *err)
{
    j->transport = transport_choose(j->opts->start, j->alloc->source, j->transport_why,
                                    sizeof j->transport_why, err);
    if (!j->transport)
        return -1;
    if (!j->transport->talks && j->opts->agent && agent_is_pushed(j->opts->agent))
        return err_set(
            err,
            "--agent push needs ssh, but agents on these hosts are started by %s: "
            "use --start ssh, or install ddprun there",
            j->transport->name);
    if (j->transport->program && j->alloc->nnodes > 1 && !j->peers)
        warn_of_ssh_options(j);
    return 0;
}

/* A job on this machine alone forks its agent, unless --start asks for a transport. */
bool job_forks_agent(const struct job *j, size_t node)
{
    bool alone = j->alloc->nnodes == 1 && j->opts->start == BY_DEFAULT;
    return j->alloc->nodes[node].local && (alone || !j->transport->at_once);
}

bool job_is_local(const struct job *j)
{
    return j->alloc->nnodes == 1 && job_forks_agent(j, 0) && !j->instead && !j->asks;
}

static char *agent_path(const struct opts *o)
{
    if (o->agent)
        return xstrdup(o->agent);
    OWNED char *ours = installed_file(INSTALLED_PROGRAM, "ddprun-agent", X_OK);
    char *real = ours ? realpath(ours, NULL) : NULL;
    return real ? real : installed_default(INSTALLED_PROGRAM, "ddprun-agent");
}

static char *ssh_of(const struct job *j)
{
    const char *args = j->alloc->ssh_args;
    if (!j->opts->ssh && args && *args)
        return xasprintf("ssh %s", args);
    return xstrdup(j->opts->ssh ? j->opts->ssh : "ssh");
}

void job_hosts(const struct job *j, struct msg_hosts *hosts)
{
    const struct opts *o = j->opts;
    bool flat = o->tree_width == 0 || !j->transport->tree;
    *hosts = (struct msg_hosts){.width = flat ? NODES_MAX : (uint32_t)o->tree_width,
                                .window = (uint32_t)o->ssh_window,
                                .timeout_ms = (uint32_t)o->start_timeout_ms,
                                .agent = agent_path(o),
                                .ssh = ssh_of(j),
                                .nhosts = (uint32_t)j->alloc->nnodes};
    hosts->hosts = xcalloc(hosts->nhosts, sizeof *hosts->hosts);
    for (uint32_t i = 0; i < hosts->nhosts; i++) {
        const struct alloc_node *n = &j->alloc->nodes[i];
        hosts->hosts[i] =
            (struct host){.name = xstrdup(n->name[0] ? n->name : "-"), /* room for one */
                          .user = xstrdup(n->user),
                          .port = (uint32_t)n->port,
                          .started = job_forks_agent(j, i) || !j->nodes[i].wanted};
    }
}

/* --- what --------------------------------------------------------------------------- */

static char *make_id(void)
{
    uint32_t r[2];
    if (getrandom(r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r)
        memcpy(r, &(uint64_t){(uint64_t)now_ns() ^ (uint64_t)getpid()}, sizeof r);
    return xasprintf("%08x%08x", r[0], r[1]);
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
    SCOPED(strv_finish) struct strv missing = {0};
    bool travels = !job_is_local(j);
    envfwd_collect(environ, &o->export_env, travels, &j->job.env, &j->job.user_set,
                   &missing);
    for (size_t i = 0; i < missing.n; i++)
        log_warn("-x %s: not set here, so there is nothing to export%s", missing.v[i],
                 strchr(missing.v[i], ',') ? "; each name needs its own -x" : "");
    if (j->peers && travels) /* each node has an environment of its own */
        keep_user_set(&j->job);
    strv_push_all(&j->job.argv, o->argv);
    strv_push_all(&j->job.apps, o->apps.v);
    /* $PWD, with symbolic links unresolved: other hosts may have only that path */
    j->job.wdir = o->wdir ? realpath(o->wdir, NULL) : get_current_dir_name();
    if (!j->job.wdir && o->wdir)
        j->job.wdir = xstrdup(o->wdir); /* it may exist on the nodes only */
    if (!j->job.wdir)
        return err_errno(err, "cannot determine the current directory");
    j->job.id = make_id();
    j->job.master_addr = xstrdup("");
    j->job.interface = xstrdup(o->interface);
    j->job.rank_names = o->rank_names;
    j->job.store_mode = o->store;
    j->job.bind_to = o->bind_to;
    j->job.input = o->input;
    j->job.env_complete = !travels;
    j->job.stragglers = o->stragglers > 0;
    j->job.page = o->ui != NULL;
    j->job.grows = o->elastic == ELASTIC_HOROVOD && j->alloc->changes;
    j->job.kv_server = o->elastic == ELASTIC_HOROVOD;
    j->job.store_open = o->store_open;
    int losses = job_losses(j);
    j->job.max_restarts = (uint32_t)(o->max_restarts + (losses < 0 ? MANY : losses));
    return 0;
}

/* --- where -------------------------------------------------------------------------- */

bool job_may_gain(const struct job *j)
{
    return j->alloc->changes || (!j->peers && j->opts->node_wait_ms > 0);
}

unsigned job_store_node(const struct job *j)
{
    return (unsigned)(j->plan->nodes[0].host - j->alloc->nodes);
}

bool job_store_is_separate(const struct job *j)
{
    const struct opts *o = j->opts;
    return j->plan->nranks == 1 && o->store == STORE_AUTO && !o->store_open &&
           o->elastic != ELASTIC_HOROVOD && o->min_nnodes == 0 && !job_may_gain(j);
}

bool job_has_store(const struct job *j, unsigned node)
{
    return j->plan && j->state == JOB_RUNNING && !j->store_lost &&
           node == job_store_node(j);
}

static bool is_same_machine(const struct strv *a, const struct strv *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = strcmp(a->v[i], b->v[i]) == 0;
    return same;
}

char *job_unreachable(const struct job *j, unsigned master, const char *addr,
                      unsigned *node)
{
    if (!sock_is_loopback(addr) && !alloc_is_localhost(addr))
        return NULL;
    const struct strv *own = &j->nodes[master].hello.addrs;
    for (*node = 0; own->n > 0 && *node < j->alloc->nnodes; ++*node) {
        const struct job_node *n = &j->nodes[*node];
        bool there = n->hello.addrs.n > 0 && (!j->plan || n->place >= 0);
        if (there && !is_same_machine(&n->hello.addrs, own))
            return xasprintf("cannot reach rank 0's host at MASTER_ADDR=%s: leave out %s",
                             addr,
                             j->opts->master_addr ? "--master-addr" : "--interface");
    }
    return NULL;
}

size_t job_hosts_most(const struct job *j)
{
    const struct opts *o = j->opts;
    return j->alloc->changes ? (size_t)o->nnodes + (size_t)o->spares : j->alloc->nnodes;
}

int job_losses(const struct job *j)
{
    const struct opts *o = j->opts;
    if (job_may_gain(j))
        return -1;
    int hosts = (int)j->alloc->nnodes - o->spares;
    int most = o->nnodes < hosts ? o->nnodes : hosts;
    return o->spares +
           (o->min_nnodes > 0 && most > o->min_nnodes ? most - o->min_nnodes : 0);
}

bool job_is_spare(const struct job *j, size_t node)
{
    if (j->nodes[node].late || j->alloc->changes)
        return j->nodes[node].place < 0;
    return node + (size_t)j->opts->spares >= j->alloc->nnodes;
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

void job_forget_plan(struct job *j)
{
    EACH_NODE (j, n) {
        n->place = -1;
        n->told = n->told >= 0 ? TOLD_OLD : n->told;
    }
    for (int r = 0; j->plan && r < j->plan->nranks; r++)
        free(j->ranks[r].error);
    free(j->ranks);
    j->ranks = NULL;
    plan_destroy(j->plan);
    j->plan = NULL;
}

static int check_plan(struct job *j, struct ddp_err *err)
{
    if (j->output) /* the next attempts go on without ranks or files that are missing */
        return 0;
    if (j->opts->pty == PTY_ON && j->plan->nranks > 1)
        return err_set(err, "--pty is for one rank, and there are more; use -np 1");
    return output_check(j->opts, j->plan->nranks, &job_output_hosts, j, err);
}

static uint32_t slots_of(const struct job *j)
{
    int n = 0;
    EACH_NODE (j, node) {
        const struct alloc_node *h = node->host;
        n += h->gone ? 0 : h->slots ? h->slots : h->slots_else;
    }
    return (uint32_t)(n > j->plan->nranks ? n : j->plan->nranks);
}

int job_make_plan(struct job *j, struct ddp_err *err)
{
    job_forget_plan(j);
    j->plan = plan_make(j->opts, j->alloc, err);
    if (!j->plan || check_plan(j, err) < 0) {
        plan_destroy(j->plan);
        j->plan = NULL; /* it has no j->ranks */
        return -1;
    }
    j->ranks = xcalloc((size_t)j->plan->nranks, sizeof *j->ranks);
    j->running = j->plan->nranks;
    j->job.nranks = (uint32_t)j->plan->nranks;
    j->job.nslots = slots_of(j);
    /* the output has begun with tags if there were more ranks */
    bool terminal =
        terminal_wanted(j->opts, j->plan->nranks) && (!j->output || j->job.rows > 0);
    j->job.rows = 0;
    if (terminal)
        terminal_size(&j->job.rows, &j->job.columns);
    else
        j->job.columns =
            (uint32_t)output_columns(j->opts, j->plan->nranks, widest_host(j->plan));
    j->job.nnodes = (uint32_t)j->plan->nnodes;
    job_shape(&j->job, j->plan);
    if (j->job.credit == 0) /* it stays for all attempts */
        j->job.credit = output_credit(j->job.nnodes);
    for (int p = 0; p < j->plan->nnodes; p++) {
        struct job_node *n = &j->nodes[j->plan->nodes[p].host - j->alloc->nodes];
        n->place = p;
        n->resized = false;
    }
    return 0;
}

int job_plan(struct job *j, struct ddp_err *err)
{
    /* not yet with peers: an error could not be sent to them before they connect */
    bool known = !j->peers || job_is_local(j);
    if (job_is_local(j))
        alloc_resolve(j->alloc, 0, topo_gpus());
    else
        known &= !ANY_NODE(j, node, node->host->slots <= 0 && !node->host->gone);
    if (known && job_make_plan(j, err) < 0)
        return -1;
    size_t most = job_hosts_most(j), n = 0;
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        bool there = !j->alloc->nodes[i].gone && n < most;
        j->nodes[i].wanted =
            there && (!known || j->nodes[i].place >= 0 || job_is_spare(j, i));
        n += j->nodes[i].wanted;
    }
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
        JOB_HOOKS(j, rank_env, (uint32_t)r, &share->ranks[i].env);
    }
}
