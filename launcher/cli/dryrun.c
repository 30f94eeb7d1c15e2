/* launcher/cli/dryrun.c - see dryrun.h
 *
 * The plan and the commands come from the functions that a launch uses. GPU counts of
 * other hosts are unknown, as that takes an agent there; the text says what was assumed.
 */
#include "launcher/cli/dryrun.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/job/job_impl.h"
#include "launcher/place/show.h"
#include "launcher/plugins/preload/preload.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"
#include "launcher/transport/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void settle_slots(struct alloc *a)
{
    for (size_t i = 0; i < a->nnodes; i++) {
        struct alloc_node *n = &a->nodes[i];
        if (n->slots_by != SLOTS_UNSET)
            continue;
        char *otherwise = n->slots_else ? xstrdup(n->slots_from) : NULL;
        alloc_resolve(a, i, n->local ? topo_gpus() : 0);
        if (!n->local) {
            free(n->slots_from);
            n->slots_from =
                xasprintf("decided on the node: its GPUs, else %s; %d assumed",
                          otherwise ? otherwise : "1", n->slots);
        }
        free(otherwise);
    }
}

struct commands {
    const struct transport *transport;
    const struct msg_hosts *hosts;
    struct strv lines;
    const char *from; /* the host that runs the command */
};

static void add_line(struct commands *c, const unsigned *nodes, size_t n)
{
    struct strv argv = {0};
    c->transport->command(c->hosts, nodes, n, &argv);
    char *text = shell_join(argv.v);
    strv_pushf(&c->lines, "%s: %s%s", c->from, text,
               c->transport->by_file ? " --bootstrap FILE" : "");
    free(text);
    strv_finish(&argv);
}

static void add_command(unsigned node, void *arg)
{
    add_line(arg, &node, 1);
}

/* One line per transport process. */
static void add_commands_at_once(struct commands *c)
{
    unsigned *nodes = xcalloc(c->hosts->nhosts + 1, sizeof *nodes);
    for (unsigned part = 0; part < TRANSPORT_PARTS; part++) {
        size_t n = 0;
        for (unsigned i = 0; i < c->hosts->nhosts; i++) {
            const struct host *h = &c->hosts->hosts[i];
            if (!h->started &&
                (!c->transport->part || c->transport->part(h->name) == part))
                nodes[n++] = i;
        }
        if (n > 0)
            add_line(c, nodes, n);
    }
    free(nodes);
}

static void push_joined(const char *title, const struct strv *words, struct strv *lines)
{
    char *text = words->n > 0 ? shell_join(words->v) : NULL;
    if (text)
        strv_pushf(lines, "%s%s", title, text);
    free(text);
}

/* The changes that the transport makes to the environment of its command. */
static void add_environment(struct commands *c)
{
    struct strv env = {0};
    if (!c->transport->environment)
        return;
    struct strv with = {0}, without = {0};
    c->transport->environment(environ, &env);
    for (size_t i = 0; i < env.n; i++) {
        char *name = xstrndup(env.v[i], strcspn(env.v[i], "="));
        const char *ours = getenv(name);
        if (!ours || strcmp(ours, strchr(env.v[i], '=') + 1) != 0)
            strv_push(&with, env.v[i]);
        free(name);
    }
    for (char *const *e = environ; *e; e++) {
        char *name = xstrndup(*e, strcspn(*e, "="));
        if (!strv_env_get(&env, name))
            strv_push(&without, name);
        free(name);
    }
    push_joined("  added to its environment: ", &with, &c->lines);
    push_joined("  removed from its environment: ", &without, &c->lines);
    strv_finish(&with);
    strv_finish(&without);
    strv_finish(&env);
}

/* The commands that start the agents, and the host that runs each. */
static void find_commands(const struct job *j, struct strv *lines)
{
    struct msg_hosts hosts;
    job_hosts(j, &hosts);
    struct commands c = {.transport = j->transport, .hosts = &hosts, .from = "here"};
    if (!job_is_local(j))
        strv_pushf(&c.lines, "other hosts by %s: %s", j->transport->name,
                   j->transport_why);
    if (job_wants_local_agent(j))
        strv_push(&c.lines, "here: the agent is a fork of ddprun");
    if (j->transport->at_once) {
        add_commands_at_once(&c);
        add_environment(&c);
    } else {
        tree_below(&hosts, TREE_ROOT, add_command, &c);
    }
    for (unsigned i = 0; i < hosts.nhosts; i++) {
        if (hosts.hosts[i].started)
            continue;
        c.from = hosts.hosts[i].name;
        tree_below(&hosts, i, add_command, &c);
    }
    *lines = c.lines;
    msg_hosts_finish(&hosts);
}

/* Bindings of the ranks on this machine: `own`, and at its index in the plan. */
static int bind_here(const struct job *j, struct binding *own,
                     const struct binding **by_place, struct ddp_err *err)
{
    for (int p = 0; p < j->plan->nnodes; p++) {
        const struct plan_node *n = &j->plan->nodes[p];
        if (!n->host->local || by_place[p])
            continue;
        if (bind_node(j->opts->bind_to, n->nlocal, own, err) < 0)
            return -1;
        by_place[p] = own;
        break;
    }
    return 0;
}

/* --- Python ranks ------------------------------------------------------------------- */

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
    char *path = program_find(j->job.argv.v[0], j->job.wdir,
                              strv_env_get(&j->job.env, "PATH"), NULL, &code, &err);
    bool python = path && preload_is_python(path);
    char *text = NULL;
    if (python && !modules)
        text = xstrdup("each imports by itself, as --no-preload says");
    else if (python && most < 2)
        text = xstrdup("each imports by itself, as no host has two");
    else if (python && *modules)
        text = xasprintf("forked on each host from one interpreter that has imported %s, "
                         "if that proves safe",
                         modules);
    else if (python)
        text = ask_interpreter(j, path);
    free(path);
    return text;
}

static void on_line(const char *text, void *arg)
{
    puts(text);
}

int dryrun(const struct opts *opts, struct alloc *alloc, struct ddp_err *err)
{
    settle_slots(alloc);
    struct job *j = job_create(opts, alloc, NULL, err);
    if (!j)
        return -1;
    int n = j->plan->nranks;
    struct binding *own = xcalloc((size_t)n, sizeof *own);
    const struct binding **by_place = xcalloc((size_t)j->plan->nnodes, sizeof *by_place);
    struct strv commands = {0};
    int rc = bind_here(j, own, by_place, err);
    if (rc == 0) {
        const struct rank_facts facts = {.master_port = opts->store_port,
                                         .rank0_port = -1,
                                         .max_restarts = opts->max_restarts,
                                         .columns = (int)j->job.columns};
        find_commands(j, &commands);
        char *python = python_ranks(j);
        const struct show show = {opts,   alloc,       j->plan,          by_place,
                                  &facts, &j->job.env, &j->job.user_set, commands.v,
                                  python};
        show_dry_run(&show, on_line, NULL);
        free(python);
        if (fflush(stdout) != 0)
            rc = err_errno(err, "cannot write");
    }
    strv_finish(&commands);
    binding_finish(own, n);
    free(own);
    free(by_place);
    job_destroy(j);
    return rc;
}
