/* launcher/agent/ranks_fork.c - ranks that are forked from an interpreter (preload.h)
 *
 * One at a time: request a rank with its streams and environment, receive its pid, record
 * it, and only then let the rank run, so that an early exit is not missed. After any
 * failure ranks.c starts the remaining ranks normally.
 */
#define LOG_SUBSYS "ranks"
#include "launcher/agent/ranks_impl.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/place/bind.h"
#include "launcher/plugins/preload/preload.h"
#include "launcher/plugins/preload/preload_report.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ranks_end_forking(struct ranks *r)
{
    worker_destroy(r->forking);
    r->forking = NULL;
    preload_destroy(r->preload);
    r->preload = NULL;
}

/* For an attempt that is being ended; the interpreter is kept for the next one. */
void ranks_drop_fork(struct ranks *r)
{
    if (!r->forking)
        return;
    worker_destroy(r->forking);
    r->forking = NULL;
    preload_drop(r->preload);
}

pid_t ranks_helper(const struct ranks *r)
{
    return r->preload ? preload_pid(r->preload) : 0;
}

static void start_normally(struct ranks *r, const char *why)
{
    bool now = r->next < (int)r->share->nlocal;
    log_info("%s: %sthe ranks import by themselves, as %s", r->share->host,
             now ? "" : "in another attempt ", why);
    ranks_end_forking(r);
    if (now)
        event_active(r->starter, EV_TIMEOUT, 0);
}

void ranks_fork_next(struct ranks *r)
{
    const struct share_rank *sr = &r->share->ranks[r->next];
    struct strv env = {0};
    int theirs[3];
    r->forking = worker_create(r->loop, r->reap, (int)sr->rank, &ranks_worker_events, r);
    if (worker_open(r->forking, ranks_takes_input(r, sr->rank), theirs) < 0) {
        start_normally(r, "a pipe cannot be made");
        return;
    }
    ranks_env(r, (uint32_t)r->next, ranks_logs_env(r, (uint32_t)r->next), &env);
    int extra = agent_plugins_rank_fd(r->agent, (uint32_t)r->next);
    preload_fork(r->preload, theirs, extra, r->bindings[r->next].cpus_text, &env);
    if (extra >= 0)
        close(extra);
    strv_finish(&env);
    for (size_t i = 0; i < ARRAY_LEN(theirs); i++) {
        if (theirs[i] >= 0)
            close(theirs[i]);
    }
}

static pid_t rank_at(size_t i, void *arg)
{
    const struct ranks *r = arg;
    return i >= r->share->nlocal ? -1 : r->workers[i] ? worker_pid(r->workers[i]) : 0;
}

static pid_t helper_of(void *arg)
{
    const struct ranks *r = arg;
    return r->preload ? preload_importer(r->preload) : 0;
}

static void on_saved(const struct msg_savings *m, void *arg)
{
    struct ranks *r = arg;
    agent_send(r->agent, MSG_SAVINGS, m);
}

static void on_ready(int64_t import_ms, void *arg)
{
    static const struct preload_report_events events = {rank_at, helper_of, on_saved};
    struct ranks *r = arg;
    r->ready = true;
    if (r->job->report)
        r->report = preload_report_create(r->loop, import_ms, &events, r);
    if (!r->stopped)
        ranks_fork_next(r);
}

/* Whether the interpreter may be needed for another attempt. */
static bool may_come_again(const struct ranks *r)
{
    return r->job->attempt < r->job->max_restarts;
}

static void on_forked(pid_t pid, void *arg)
{
    struct ranks *r = arg;
    worker_adopt(r->forking, pid);
    ranks_started(r, r->forking);
    r->forking = NULL;
    r->next++;
    if (r->report)
        preload_report_forked(r->report);
    preload_go(r->preload);
    if (r->next < (int)r->share->nlocal) {
        ranks_fork_next(r);
        return;
    }
    if (!may_come_again(r))
        ranks_end_forking(r);
    if (r->report)
        preload_report_all(r->report);
    agent_send(r->agent, MSG(spawned));
}

static void on_over(const char *why, void *arg)
{
    start_normally(arg, why);
}

/* Libraries evaluate CPUs and OpenMP places while loading: these must be equal for all.
 */
static int same_cpus(const struct ranks *r, struct ddp_err *why)
{
    for (uint32_t i = 1; i < r->share->nlocal; i++) {
        if (r->bindings[i].ncpus != r->bindings[0].ncpus)
            return err_set(why, "they do not have the same number of CPUs");
    }
    for (size_t i = 0; r->bindings[0].cpus && i < r->base.n; i++) {
        static const char *const places[] = {
            "OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY="};
        for (size_t k = 0; k < ARRAY_LEN(places); k++) {
            if (strncmp(r->base.v[i], places[k], strlen(places[k])) == 0)
                return err_set(why, "they are bound, and so is OpenMP: '%s'",
                               r->base.v[i]);
        }
    }
    return 0;
}

/* A rank's environment in another attempt, with "?" for values that change between
 * attempts. */
static void later_env(const struct ranks *r, const struct strv *env, struct strv *later)
{
    strv_push_all(later, env->v);
    strv_env_set(later, "TORCHELASTIC_RESTART_COUNT", "?");
    if (r->job->store_mode == STORE_RANK0)
        strv_env_set(later, "MASTER_PORT", "?");
    for (size_t i = 0; i < env->n; i++) {
        if (strncmp(env->v[i], "PMIX_SERVER_", 12) != 0)
            continue;
        char *name = xstrndup(env->v[i], strcspn(env->v[i], "="));
        strv_env_set(later, name, "?");
        free(name);
    }
}

/* In automatic mode, do not try, or log a reason, where preloading has no benefit. */
bool ranks_may_fork(const struct ranks *r)
{
    const char *modules = r->job->preload;
    return modules && (*modules || (r->share->nlocal > 1 && preload_is_python(r->path)));
}

void ranks_start_forking(struct ranks *r)
{
    static const struct preload_events events = {on_ready, on_forked, on_over, NULL};
    struct ddp_err why = {""};
    uint32_t n = r->share->nlocal, nenvs = n;
    struct strv *envs = xcalloc(n + 1, sizeof *envs);
    for (uint32_t i = 0; i < n; i++)
        ranks_env(r, i, false, &envs[i]);
    if (may_come_again(r))
        later_env(r, &envs[0], &envs[nenvs++]);
    const struct preload_spec spec = {.path = r->path,
                                      .argv = r->job->argv.v,
                                      .modules = r->job->preload,
                                      .envs = envs,
                                      .nenvs = (int)nenvs,
                                      .cpus = r->bindings[0].cpus,
                                      .cpus_size = r->bindings[0].cpus_size};
    if (n < 2)
        err_set(&why, "there is only one");
    else if (same_cpus(r, &why) == 0)
        r->preload = preload_create(r->loop, r->reap, &spec, &events, r, &why);
    if (!r->preload)
        log_info("%s: the ranks import by themselves, as %s", r->share->host, why.text);
    for (uint32_t i = 0; i < nenvs; i++)
        strv_finish(&envs[i]);
    free(envs);
}
