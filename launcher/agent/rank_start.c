/* launcher/agent/rank_start.c - see rank_start.h */
#define LOG_SUBSYS "ranks"
#include "launcher/agent/rank_start.h"

#include "common/apps.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/hooks.h"
#include "launcher/agent/machine.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* --- programs ----------------------------------------------------------------------- */

struct program *programs_of(const struct programs *all, const struct strv *apps,
                            uint32_t rank)
{
    unsigned first;
    return &all->p[apps_of(apps, rank, &first)];
}

static void programs_finish(struct programs *all)
{
    for (size_t i = 0; i < all->n; i++) {
        strv_finish(&all->p[i].argv);
        free(all->p[i].path);
        agent_plugins_forget(all->p[i].seen);
    }
    free(all->p);
    *all = (struct programs){0};
}

static void programs_init(struct programs *all, const struct msg_job *job,
                          const struct msg_share *share)
{
    all->n = job->apps.n + 1;
    all->p = xcalloc(all->n, sizeof *all->p);
    for (size_t i = 0; i < all->n; i++) {
        struct app app;
        if (!apps_get(&job->apps, i, job->argv.n, &app)) {
            programs_finish(all);
            return;
        }
        all->p[i].local = UINT32_MAX;
        for (size_t w = 0; w < app.nwords; w++)
            strv_push(&all->p[i].argv, job->argv.v[app.word + w]);
    }
    for (uint32_t i = share->nlocal; i-- > 0;)
        programs_of(all, &job->apps, share->ranks[i].rank)->local = i;
}

/* --- preparation -------------------------------------------------------------------- */

/* The agent's own variables, overridden by the launcher's; or only the latter. */
static void make_env(const struct msg_job *job, struct strv *env)
{
    if (job->env_complete) {
        strv_push_all(env, job->env.v);
        return;
    }
    strv_push_all(env, environ);
    strv_env_set_all(env, &job->env);
}

static int fail(struct prepare *p, int code, uint32_t local)
{
    p->code = code;
    p->local = local;
    return -1;
}

/* A warning if a Python given by name is not that of the user's active environment, which
 * is first in PATH: where its directory is missing, the search finds the system's Python,
 * which has other packages. NULL: none. */
static char *find_other_python(const struct prepare *p, const struct program *one)
{
    static const char *const names[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    const char *name = one->argv.v[0];
    if (!p->host || strchr(name, '/') || !program_is_python(name))
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *dir = strv_env_get(&p->env, names[i]);
        if (dir && *dir && access(dir, F_OK) < 0 && errno == ENOENT)
            return xasprintf("the Python environment '%s' (%s) is missing on %s, which "
                             "runs '%s'; copy it there, or use a shared directory",
                             dir, names[i], p->host, one->path);
    }
    return NULL;
}

static int find_programs(struct prepare *p)
{
    const char *path = strv_env_get(&p->env, "PATH");
    for (size_t i = 0; i < p->programs.n; i++) {
        struct program *one = &p->programs.p[i];
        int code;
        if (one->local == UINT32_MAX)
            continue;
        one->path = program_find(one->argv.v[0], p->wdir, path, p->host, &code, &p->err);
        if (!one->path)
            return fail(p, code, one->local);
        if (!p->other_python)
            p->other_python = find_other_python(p, one);
        one->seen = agent_plugins_examine(one->path, &p->env);
    }
    return 0;
}

static int bind_ranks(struct prepare *p)
{
    p->bindings = xcalloc(p->nlocal, sizeof *p->bindings);
    if (bind_node(p->bind_to, (int)p->nlocal, p->bindings, &p->err) == 0)
        return 0;
    if (p->host)
        err_prefix(&p->err, "%s", p->host);
    return fail(p, EXIT_CANNOT_START, 0);
}

void prepare_run(struct background_call *c)
{
    struct prepare *p = (struct prepare *)c;
    if (find_programs(p) < 0 || bind_ranks(p) < 0)
        return;
    if (p->loop_addr)
        p->gloo_interface = machine_gloo_interface(p->loop_addr);
    /* the children inherit the directory; usually the agent is in it already */
    if (chdir(p->wdir) < 0) {
        err_errno(&p->err, "cannot start in directory '%s'", p->wdir);
        fail(p, EXIT_CANNOT_START, 0);
    }
}

/* Gloo listens at the address of this host's name; if that is a loopback address, other
 * hosts cannot connect, and the rank needs an interface. */
static const char *loop_addr_of(const struct msg_job *job)
{
    return job->nnodes > 1 && !job->interface ? job->master_addr : NULL;
}

bool prepare_fits(const struct prepare *p, const struct agent *a)
{
    const char *addr = loop_addr_of(&a->job);
    return addr && p->loop_addr ? strcmp(addr, p->loop_addr) == 0
                                : !addr && !p->loop_addr;
}

struct prepare *prepare_create(const struct agent *a)
{
    const struct msg_job *job = &a->job;
    const struct msg_share *share = &a->share;
    struct prepare *p = xcalloc(1, sizeof *p);
    *p = (struct prepare){
        .wdir = xstrdup(job->wdir),
        .host = job->nnodes > 1 || !job->env_complete ? xstrdup(share->host) : NULL,
        .loop_addr = xstrdup(loop_addr_of(job)),
        .bind_to = (enum bind_to)job->bind_to,
        .nlocal = share->nlocal,
    };
    programs_init(&p->programs, job, share);
    make_env(job, &p->env);
    contract_base_init(&p->base, &p->env, &job->user_set);
    return p;
}

void prepare_free(struct prepare *p)
{
    if (!p)
        return;
    if (p->bindings)
        binding_finish(p->bindings, (int)p->nlocal);
    free(p->bindings);
    programs_finish(&p->programs);
    contract_base_finish(&p->base);
    strv_finish(&p->env);
    free(p->gloo_interface);
    free(p->other_python);
    free(p->loop_addr);
    free(p->wdir);
    free(p->host);
    free(p);
}

/* --- the environment of a rank ------------------------------------------------------ */

static void on_env_note(const struct env_note *n, void *arg)
{
    static const char *const what[] = {"set", "replaced", "kept as it was", "removed"};
    const struct agent *a = arg;
    if (n->user && n->origin == ENV_REPLACED && a->share.node_rank == 0)
        log_warn("-x %s=%s is ignored: ddprun sets it for each rank", n->name, n->old);
    else if (n->origin != ENV_SET)
        log_info("environment: %s %s%s%s%s", n->name, what[n->origin],
                 n->old ? " ('" : "", n->old ? n->old : "", n->old ? "')" : "");
}

static const char tf_format[] = "{\"cluster\": {\"worker\": [\"%s\"]}, \"task\": "
                                "{\"type\": \"worker\", \"index\": %u}}";

/* TensorFlow's, in JSON; NULL: not wanted. */
static char *tf_config_of(const struct msg_job *job, unsigned rank)
{
    const char *p = job->endpoints;
    if (!p || !(job->rank_names & NAMES_TF))
        return NULL;
    OWNED char *list = xcalloc(3 * strlen(p) + 1, 1);
    for (char *to = list; *p; p++) {
        if (*p == ',')
            to = stpcpy(to, "\",\"");
        else
            *to++ = *p;
    }
    return xasprintf(tf_format, list, rank);
}

void rank_env_make(struct agent *a, const struct prepare *prep, uint32_t local, bool note,
                   struct strv *env)
{
    const struct msg_job *job = &a->job;
    const struct share_rank *sr = &a->share.ranks[local];
    const struct binding *b = &prep->bindings[local];
    OWNED char *tf_config = tf_config_of(job, sr->rank);
    struct rank_facts facts = {
        .node_list = job->node_list,
        .tasks_per_node = job->tasks_per_node,
        .tf_config = tf_config,
        .endpoints = job->endpoints,
        .tracker_port = (int)job->tracker_port,
        .rank = (int)sr->rank,
        .size = (int)job->nranks,
        .local_rank = (int)local,
        .local_size = (int)a->share.nlocal,
        .node_rank = (int)a->share.node_rank,
        .nnodes = (int)job->nnodes,
        .grows = job->grows,
        .cross_rank = (int)sr->cross_rank,
        .cross_size = (int)sr->cross_size,
        .hostname = a->share.host,
        .master_addr = job->master_addr,
        .master_port = (int)job->master_port,
        .rank0_port = (int)job->rank0_port,
        .job_id = job->id,
        .restart_count = (int)job->attempt,
        .max_restarts = (int)job->max_restarts,
        .ncpus = b->ncpus,
        .gpu = b->gpu_text,
        .interface = job->interface,
        .gloo_interface = prep->gloo_interface,
        .columns = (int)job->columns,
        .rank_names = job->rank_names,
        .store = (enum store_mode)job->store_mode,
    };
    AGENT_HOOKS(a, rank_facts, local, &facts);
    contract_apply(&facts, &prep->base, env, note ? on_env_note : NULL, a);
    AGENT_HOOKS(a, rank_env, local, env);
    strv_env_set_all(env, &sr->env);
}

/* --- one start ---------------------------------------------------------------------- */

static void close_ends(struct next_rank *n)
{
    worker_close_ends(n->streams, ARRAY_LEN(n->streams));
    worker_close_ends(&n->extra, 1);
}

void next_rank_finish(struct next_rank *n)
{
    close_ends(n);
    strv_finish(&n->env);
}

void rank_start_run(struct background_call *c)
{
    struct rank_start *s = (struct rank_start *)c;
    const struct child_spec spec = {
        .path = s->program->path,
        .argv = s->program->argv.v,
        .env = s->next.env.v,
        .in = s->next.streams[0],
        .out = s->next.streams[1],
        .err = s->next.streams[2],
        .extra = s->next.extra,
        .cpus = s->binding->cpus,
        .cpus_size = s->binding->cpus_size,
        .place = s->place,
        .pidfd = &s->pidfd,
        .group = !s->terminal,
        .session = s->terminal,
        .terminal = s->terminal,
    };
    enum child_step step;
    s->pid = child_spawn(&spec, &step);
    close_ends(&s->next);
    if (s->pid > 0)
        reap_order(s->order_fd, s->pid, s->pidfd);
    else
        s->code = program_failed(s->program->argv.v[0], s->program->path, s->prep->wdir,
                                 s->prep->host, step, &s->err);
}

void rank_start_free(struct rank_start *s)
{
    next_rank_finish(&s->next);
    free(s);
}
