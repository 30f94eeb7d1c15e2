/* launcher/plugins/preload/preload_job.c - --preload, on the launcher's side: what it
 * saved, for --report, and what it would do, for --dry-run */
#include "common/mem.h"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"
#include "launcher/plugins/preload/preload.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <unistd.h>

struct preload_job {
    struct job *job;           /* borrowed */
    struct msg_savings *saved; /* owned, by node */
};

static int handle_savings(void *state, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    ((struct preload_job *)state)->saved[node] = *(const struct msg_savings *)f->m;
    return 0;
}

/* What --preload saved, over the hosts that have forked their ranks. */
static void preload_report(void *state)
{
    const struct msg_savings *saved = ((struct preload_job *)state)->saved;
    struct job *j = ((struct preload_job *)state)->job;
    double import_s = 0, spared_s = 0;
    int hosts = 0;
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        const struct msg_savings *m = &saved[i];
        double s = m->import_ms / 1e3;
        if (m->forks == 0)
            continue;
        hosts++;
        import_s = s > import_s ? s : import_s;
        spared_s += s * (m->forks - 1);
    }
    if (hosts == 0)
        return;
    job_say(j,
            "ddprun: imported once%s, in %.1f s: saves %.1f s of other "
            "imports",
            hosts > 1 ? " on each host" : "", import_s, spared_s);
}

/* --- --dry-run ---------------------------------------------------------------------- */

struct asked {
    struct loop *loop;
    char *answer; /* owned */
};

static void on_would(const char *modules, void *arg)
{
    struct asked *a = arg;
    a->answer =
        xasprintf("forked on each host from one interpreter that has imported %s, "
                  "as the script does first, if that proves safe",
                  modules);
    loop_stop(a->loop, 0);
}

static void on_over(const char *why, void *arg)
{
    struct asked *a = arg;
    a->answer = xasprintf("each imports by itself, as %s", why);
    loop_stop(a->loop, 0);
}

/* Ask the interpreter of this machine, as an agent does; malloc'ed. */
static char *ask_interpreter(const struct job *j, const char *path)
{
    static const struct preload_events events = {.over = on_over, .would = on_would};
    const struct preload_spec spec = {.path = path,
                                      .argv = j->job.argv.v,
                                      .modules = PRELOAD_ASK,
                                      .envs = &j->job.env,
                                      .nenvs = 1};
    struct ddp_err err = {""};
    struct asked a = {.loop = loop_create(&err)};
    struct reap *reap = a.loop ? reap_create(a.loop, &err) : NULL;
    struct preload *p = NULL;
    if (reap && child_init(&err) == 0 && chdir(j->job.wdir) == 0)
        p = preload_create(a.loop, reap, &spec, &events, &a, &err);
    if (p)
        loop_run(a.loop);
    else
        a.answer = xasprintf("each imports by itself, as %s", err.text);
    preload_destroy(p);
    reap_destroy(reap);
    loop_destroy(a.loop);
    return a.answer;
}

/* How Python ranks will be started, malloc'ed; NULL if the program is not Python. */
static char *python_ranks(const struct job *j)
{
    struct ddp_err err;
    const char *modules = j->opts->preload;
    int code, most = 0;
    for (int p = 0; p < j->plan->nnodes; p++)
        most = j->plan->nodes[p].nlocal > most ? j->plan->nodes[p].nlocal : most;
    OWNED char *path = program_find(j->job.argv.v[0], j->job.wdir,
                                    strv_env_get(&j->job.env, "PATH"), NULL, &code, &err);
    bool python = path && preload_is_python(path);
    char *text = NULL;
    if (python && !modules)
        text = xstrdup("each imports by itself, because of --no-preload");
    else if (python && most < 2)
        text = xstrdup("each imports by itself, as no host has two");
    else if (python && *modules)
        text = xasprintf("forked on each host from one interpreter that has imported %s, "
                         "if that proves safe",
                         modules);
    else if (python)
        text = ask_interpreter(j, path);
    return text;
}

static void preload_dry_run(void *state, struct strv *lines)
{
    OWNED char *text = python_ranks(((struct preload_job *)state)->job);
    if (text)
        strv_pushf(lines, "Python ranks: %s", text);
}

/* --- life --------------------------------------------------------------------------- */

static int preload_init(void *state, struct ddp_err *err)
{
    struct preload_job *s = state;
    struct job *j = s->job;
    j->job.preload = xstrdup(j->opts->preload);
    j->job.report = j->opts->report;
    s->saved = xcalloc(j->alloc->nnodes, sizeof *s->saved);
    return 0;
}

static void preload_fini(void *state)
{
    free(((struct preload_job *)state)->saved);
}

static const struct job_message messages[] = {{MSG_SAVINGS, handle_savings}, {0}};

const struct job_plugin preload_job = {
    .name = "preload",
    .state_size = sizeof(struct preload_job),
    .init = preload_init,
    .fini = preload_fini,
    .report = preload_report,
    .dry_run = preload_dry_run,
    .messages = messages,
};
