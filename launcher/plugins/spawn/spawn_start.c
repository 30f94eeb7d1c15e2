/* launcher/plugins/spawn/spawn_start.c - see spawn_start.h */
#include "launcher/plugins/spawn/spawn_start.h"

#include "common/apps.h"
#include "common/err.h"
#include "common/mem.h"
#include "launcher/contract.h"
#include "launcher/spawned.h"
#include "launcher/transport/child.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

/* All words, in `apps` where each program but the first begins. Returns the number of
 * processes. */
static uint64_t push_programs(struct strv *words, struct strv *apps,
                              const struct msg_spawn *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->nprograms; i++) {
        if (i > 0)
            apps_add(apps, (unsigned)n, words->n);
        strv_push_all(words, m->programs[i].argv.v);
        n += m->programs[i].n;
    }
    return n;
}

/* Open MPI sends its own variables of the rank, some of which ddprun has set. */
static void push_exports(struct strv *argv, const struct strv *env)
{
    for (size_t i = 0; i < env->n; i++) {
        if (contract_knows(env->v[i]))
            continue;
        strv_push(argv, "-x");
        strv_push(argv, env->v[i]);
    }
}

static void set_lines(struct strv *env, const char *name, const struct strv *lines)
{
    OWNED char *text = NULL;
    for (size_t i = 0; i < lines->n; i++)
        xappendf(&text, "%s\n", lines->v[i]);
    strv_env_set(env, name, text);
}

static void push_variables(struct strv *env, const char *number, const char *hosts,
                           const struct msg_spawn *m)
{
    strv_push_all(env, environ);
    strv_env_set(env, SPAWNED_NUMBER, number);
    strv_env_set(env, SPAWNED_HOSTS, hosts);
    strv_env_set(env, SPAWNED_WDIR, m->programs[0].wdir);
    strv_env_set(env, SPAWNED_WAITS, m->waits ? "1" : NULL);
    set_lines(env, SPAWNED_KEYS, &m->keys);
}

pid_t spawn_start(const struct job *j, const struct msg_spawn *m, const char *number,
                  const char *hosts, int *fd, struct ddp_err *err)
{
    int pair[2];
    SCOPED(strv_finish) struct strv argv = {0}, env = {0}, words = {0}, apps = {0};
    OWNED char *self = realpath("/proc/self/exe", NULL);
    strv_push(&argv, "ddprun");
    strv_push_all(&argv, j->opts->passed.v ? j->opts->passed.v : (char *[]){NULL});
    push_exports(&argv, &m->env);
    strv_push(&argv, "-np");
    strv_pushf(&argv, "%u", (unsigned)push_programs(&words, &apps, m));
    strv_push(&argv, "--");
    strv_push_all(&argv, words.v);
    push_variables(&env, number, hosts, m);
    set_lines(&env, SPAWNED_APPS, &apps);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_errno(err, "cannot start another ddprun");
    /* no path, if another file has taken its place: this version is started, too */
    struct child_spec spec = {.path = self ? self : "/proc/self/exe",
                              .argv = argv.v,
                              .env = env.v,
                              .in = -1,
                              .out = STDOUT_FILENO,
                              .err = STDERR_FILENO,
                              .extra = pair[1],
                              .group = true}; /* signals come from this ddprun only */
    enum child_step step;
    pid_t pid = child_spawn(&spec, &step);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return err_spawn(err, "cannot start another ddprun");
    }
    *fd = pair[0];
    return pid;
}
