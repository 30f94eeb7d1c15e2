/* launcher/job/dryrun.c - see dryrun.h
 *
 * The plan and the commands come from the functions that a launch uses. GPU counts of
 * other hosts are unknown, as that takes an agent there; the text says what was assumed.
 */
#include "launcher/job/dryrun.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/job/describe.h"
#include "launcher/job/hooks.h"
#include "launcher/job/job.h"
#include "launcher/link/bootstrap.h"
#include "launcher/place/show.h"
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
        if (n->slots_by != SLOTS_UNSET) {
            if (n->local)
                alloc_resolve(a, i, topo_gpus());
            else
                n->slots_else = 0; /* its GPUs may allow more */
            continue;
        }
        OWNED char *otherwise = n->slots_else ? xstrdup(n->slots_from) : NULL;
        alloc_resolve(a, i, n->local ? topo_gpus() : 0);
        if (!n->local)
            alloc_set_slots(n, n->slots, SLOTS_UNSET,
                            "decided on the node: its GPUs, else %s; %d assumed",
                            otherwise ? otherwise : "1", n->slots);
    }
}

struct commands {
    const struct transport *transport;
    const struct msg_hosts *hosts;
    struct strv lines;
    const char *from; /* the host that runs the command */
};

static void add_line(const unsigned *nodes, size_t n, void *arg)
{
    struct commands *c = arg;
    SCOPED(strv_finish) struct strv argv = {0};
    c->transport->command(c->hosts, nodes, n, &argv);
    OWNED char *text = shell_join(argv.v);
    strv_pushf(&c->lines, "%s: %s%s", c->from, text,
               c->transport->by_file ? " --bootstrap FILE" : "");
}

/* One line per host, by the host above it in the tree. */
static void add_commands(struct commands *c)
{
    SCOPED(tree_row_finish) struct tree_row row = {0};
    tree_row_init(&row, c->hosts);
    for (size_t i = 0; i < row.n; i++) {
        long parent = bootstrap_parent_place(c->hosts->width, i);
        c->from = parent < 0 ? "here" : row.nodes[parent].name;
        add_line(&row.nodes[i].node, 1, c);
    }
}

/* One line per transport process. */
static void add_commands_at_once(struct commands *c)
{
    OWNED unsigned *nodes = xcalloc(c->hosts->nhosts, sizeof *nodes);
    size_t n = 0;
    for (unsigned i = 0; i < c->hosts->nhosts; i++) {
        if (!c->hosts->hosts[i].started)
            nodes[n++] = i;
    }
    transport_batches(c->transport, c->hosts, nodes, n, add_line, c);
}

static void push_joined(const char *title, const struct strv *words, struct strv *lines)
{
    OWNED char *text = words->n > 0 ? shell_join(words->v) : NULL;
    if (text)
        strv_pushf(lines, "%s%s", title, text);
}

/* The changes that the transport makes to the environment of its command. */
static void add_environment(struct commands *c)
{
    SCOPED(strv_finish) struct strv env = {0};
    if (!c->transport->environment)
        return;
    SCOPED(strv_finish) struct strv with = {0}, without = {0};
    c->transport->environment(environ, &env);
    for (size_t i = 0; i < env.n; i++) {
        OWNED char *name = xstrndup(env.v[i], strcspn(env.v[i], "="));
        const char *ours = getenv(name);
        if (!ours || strcmp(ours, strchr(env.v[i], '=') + 1) != 0)
            strv_push(&with, env.v[i]);
    }
    for (char *const *e = environ; *e; e++) {
        OWNED char *name = xstrndup(*e, strcspn(*e, "="));
        if (!strv_env_get(&env, name))
            strv_push(&without, name);
    }
    push_joined("  added to its environment: ", &with, &c->lines);
    push_joined("  removed from its environment: ", &without, &c->lines);
}

/* The commands that start the agents, and the host that runs each. */
static void find_commands(const struct job *j, struct strv *lines)
{
    SCOPED(msg_hosts_finish) struct msg_hosts hosts = {0};
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
        add_commands(&c);
    }
    *lines = c.lines;
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

int dryrun(const struct opts *opts, struct alloc *alloc, struct ddp_err *err)
{
    settle_slots(alloc);
    struct job *j = job_create(opts, alloc, NULL, err);
    if (!j)
        return -1;
    int n = j->plan->nranks;
    OWNED struct binding *own = xcalloc((size_t)n, sizeof *own);
    OWNED const struct binding **by_place =
        xcalloc((size_t)j->plan->nnodes, sizeof *by_place);
    SCOPED(strv_finish) struct strv commands = {0};
    int rc = bind_here(j, own, by_place, err);
    if (rc == 0) {
        const struct rank_facts facts = {.master_port = opts->store_port,
                                         .rank0_port = -1,
                                         .store_port = job_store_is_separate(j) ? -1 : 0,
                                         .max_restarts = opts->max_restarts,
                                         .columns = (int)j->job.columns};
        find_commands(j, &commands);
        SCOPED(strv_finish) struct strv notes = {0};
        JOB_HOOKS(j, dry_run, &notes);
        const struct show show = {opts,   alloc,       j->plan,          by_place,
                                  &facts, &j->job.env, &j->job.user_set, commands.v,
                                  notes.v};
        show_dry_run(&show, stdout);
        if (fflush(stdout) != 0)
            rc = err_errno(err, "cannot write");
    }
    binding_finish(own, n);
    job_destroy(j);
    return rc;
}
