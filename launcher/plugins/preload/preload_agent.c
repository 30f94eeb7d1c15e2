/* launcher/plugins/preload/preload_agent.c - ranks that are forked from an interpreter
 *
 * One at a time: request a rank with its streams and environment (preload.h), receive its
 * pid, record it, and only then let the rank run, so that an early exit is not missed.
 * After any failure the core starts the remaining ranks normally.
 */
#define LOG_SUBSYS "ranks"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/plugin.h"
#include "launcher/agent/ranks.h"
#include "launcher/plugins/plugins.h"
#include "launcher/plugins/preload/preload.h"

#include <stdlib.h>
#include <string.h>

struct preload_node {
    struct agent *agent;      /* borrowed */
    struct preload *preload;  /* owned: the interpreter; NULL: not used */
    struct msg_savings saved; /* for --report */
    bool python;              /* the program is a Python interpreter */
    bool tried;               /* whether to use one has been decided */
    bool ready;               /* its imports are done */
    bool forking;             /* it has been asked for a rank */
};

static void end_forking(struct preload_node *s)
{
    preload_destroy(s->preload);
    s->preload = NULL;
    s->forking = false;
}

/* A warning where the user has named the modules, as they may not exist; on one host, as
 * the reason is usually that of all. */
static void say_why_not(const struct ranks *r, const char *why)
{
    bool now = r->next < r->until;
    bool warn = now && !r->stopped && *r->job->preload && r->share->nlocal > 1 &&
                r->share->node_rank == 0;
    log_write(warn ? LOG_WARN : LOG_INFO, LOG_SUBSYS,
              "%s%s: %sthe ranks import by themselves, as %s", warn ? "--preload: " : "",
              r->share->host, now ? "" : "in another attempt ", why);
}

static void start_normally(struct preload_node *s, const char *why)
{
    struct ranks *r = s->agent->ranks;
    say_why_not(r, why);
    end_forking(s);
    ranks_resume(r);
}

static void fork_next(struct preload_node *s)
{
    struct ranks *r = s->agent->ranks;
    struct next_rank n;
    if (ranks_next(r, &n) < 0) {
        start_normally(s, "a pipe cannot be made");
        return;
    }
    s->forking = true;
    preload_fork(s->preload, n.streams, n.extra, r->prep->bindings[r->next].cpus_text,
                 &n.env);
    next_rank_finish(&n);
}

static void on_ready(int64_t import_ms, void *arg)
{
    struct preload_node *s = arg;
    s->ready = true;
    s->saved.import_ms = (uint32_t)import_ms;
    if (s->agent->ranks->prepared && !s->agent->ranks->stopped)
        fork_next(s);
}

/* Whether the interpreter may be needed for another attempt. */
static bool may_come_again(const struct preload_node *s)
{
    return s->agent->job.attempt < s->agent->job.max_restarts;
}

static void on_forked(pid_t pid, void *arg)
{
    struct preload_node *s = arg;
    s->forking = false;
    bool last = ranks_adopt(s->agent->ranks, pid);
    s->saved.forks++;
    preload_go(s->preload);
    if (!last) {
        fork_next(s);
        return;
    }
    if (!may_come_again(s))
        end_forking(s);
    if (s->agent->job.report)
        agent_send(s->agent, MSG_SAVINGS, &s->saved);
}

static void on_over(const char *why, void *arg)
{
    start_normally(arg, why);
}

/* Libraries read CPUs and OpenMP places while loading: these must be equal for all. */
static int same_cpus(const struct ranks *r, struct ddp_err *why)
{
    for (uint32_t i = 1; i < r->share->nlocal; i++) {
        if (r->prep->bindings[i].ncpus != r->prep->bindings[0].ncpus)
            return err_set(why, "they do not have the same number of CPUs");
    }
    for (size_t i = 0; r->prep->bindings[0].cpus && i < r->prep->env.n; i++) {
        static const char *const places[] = {
            "OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="};
        for (size_t k = 0; k < ARRAY_LEN(places); k++) {
            if (strncmp(r->prep->env.v[i], places[k], strlen(places[k])) == 0)
                return err_set(why, "they are bound, and so is OpenMP: '%s'",
                               r->prep->env.v[i]);
        }
    }
    return 0;
}

/* A rank's environment in another attempt, where this node may have taken another's
 * place: with other values for all that may change. */
static void later_env(struct ranks *r, struct strv *later)
{
    struct agent *a = r->agent;
    struct msg_job job = a->job;
    struct msg_share share = a->share;
    a->job.attempt++;
    a->job.master_addr = (char[]){"?"};
    a->job.master_port++;
    a->job.rank0_port++;
    a->job.nranks++;
    a->job.nnodes++;
    a->share.node_rank++;
    a->share.host = (char[]){"?"};
    ranks_env(r, 0, later);
    a->job = job;
    a->share = share;
    for (size_t i = 0; i < later->n; i++) {
        if (strncmp(later->v[i], "PMIX_SERVER_", 12) != 0)
            continue;
        OWNED char *name = xstrndup(later->v[i], strcspn(later->v[i], "="));
        strv_env_set(later, name, "?");
    }
}

/* In automatic mode, do not try, or log a reason, where preloading has no benefit. */
static bool may_fork(const struct preload_node *s)
{
    const struct ranks *r = s->agent->ranks;
    const char *modules = r->job->preload;
    return modules && r->prep->programs.n == 1 &&
           (*modules || (r->share->nlocal > 1 && s->python));
}

static void start_interpreter(struct preload_node *s)
{
    static const struct preload_events events = {on_ready, on_forked, on_over, NULL};
    struct ranks *r = s->agent->ranks;
    struct ddp_err why = {""};
    uint32_t n = r->share->nlocal, nenvs = n;
    OWNED struct strv *envs = xcalloc(n + 1, sizeof *envs);
    for (uint32_t i = 0; i < n; i++)
        ranks_env(r, i, &envs[i]);
    if (may_come_again(s))
        later_env(r, &envs[nenvs++]);
    const struct preload_spec spec = {.path = r->prep->programs.p[0].path,
                                      .argv = r->job->argv.v,
                                      .modules = r->job->preload,
                                      .envs = envs,
                                      .nenvs = (int)nenvs,
                                      .cpus = r->prep->bindings[0].cpus,
                                      .cpus_size = r->prep->bindings[0].cpus_size};
    if (n < 2)
        err_set(&why, "there is only one");
    else if (same_cpus(r, &why) == 0)
        s->preload = preload_create(r->loop, r->reap, &spec, &events, s, &why);
    if (!s->preload)
        say_why_not(r, why.text);
    for (uint32_t i = 0; i < nenvs; i++)
        strv_finish(&envs[i]);
}

/* --- hooks -------------------------------------------------------------------------- */

/* A peer imports the modules that its own ddprun was given. */
static int preload_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    const struct msg_job *own = ((struct preload_node *)state)->agent->own;
    if (own) {
        free(job->preload);
        job->preload = xstrdup(own->preload);
    }
    return 0;
}

static void *preload_examine(const char *path, const struct elf *elf,
                             const struct strv *env)
{
    bool *python = xcalloc(1, sizeof *python);
    *python = preload_is_python(path);
    return python;
}

static int preload_program(void *state, const char *path, const void *seen,
                           struct ddp_err *err)
{
    ((struct preload_node *)state)->python = *(const bool *)seen;
    return 0;
}

static bool preload_start(void *state)
{
    struct preload_node *s = state;
    if (!s->tried && may_fork(s))
        start_interpreter(s);
    s->tried = true;
    if (s->preload && s->ready && !s->forking && !s->agent->ranks->stopped)
        fork_next(s);
    return s->preload != NULL;
}

/* The interpreter is kept for another attempt. */
static void preload_stop(void *state, bool again)
{
    struct preload_node *s = state;
    if (!again)
        end_forking(s);
    else if (s->forking)
        preload_drop(s->preload);
    s->forking = false;
}

static bool preload_spares(const void *state, pid_t pid)
{
    const struct preload_node *s = state;
    pid_t helper = s->preload ? preload_pid(s->preload) : 0;
    return helper > 0 && (pid == 0 || pid == helper);
}

static void preload_fini(void *state)
{
    end_forking(state);
}

const struct agent_plugin preload_agent = {
    .name = "preload",
    .state_size = sizeof(struct preload_node),
    .fini = preload_fini,
    .prepare = preload_prepare,
    .examine = preload_examine,
    .program = preload_program,
    .start = preload_start,
    .stop = preload_stop,
    .spares = preload_spares,
};
