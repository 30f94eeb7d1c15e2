/* launcher/agent/prepare.c - see prepare.h */
#include "launcher/agent/prepare.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/agent/hooks.h"
#include "launcher/agent/machine.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* The agent's own variables, overridden by those from the launcher; or only the latter.
 */
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
        one->seen = agent_plugins_examine(one->path, &p->env);
    }
    return 0;
}

/* The children inherit the directory; usually the agent is in it already. */
static int enter(struct prepare *p)
{
    if (chdir(p->wdir) == 0)
        return 0;
    err_errno(&p->err, "cannot start in directory '%s'", p->wdir);
    return fail(p, EXIT_CANNOT_START, 0);
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
    enter(p);
}

struct prepare *prepare_create(const struct agent *a)
{
    const struct msg_job *job = &a->job;
    const struct msg_share *share = &a->share;
    struct prepare *p = xcalloc(1, sizeof *p);
    bool several = job->nnodes > 1;
    *p = (struct prepare){
        .wdir = xstrdup(job->wdir),
        .host = several ? xstrdup(share->host) : NULL,
        .loop_addr = several && !job->interface ? xstrdup(job->master_addr) : NULL,
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
    free(p->loop_addr);
    free(p->wdir);
    free(p->host);
    free(p);
}
