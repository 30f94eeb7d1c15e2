/* launcher/place/show.c - see show.h */
#include "launcher/place/show.h"

#include "common/apps.h"
#include "common/hostlist.h"
#include "common/idset.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 88

/* --- hosts -------------------------------------------------------------------------- */

static const struct plan_node *planned(const struct plan *p,
                                       const struct alloc_node *host)
{
    for (int i = 0; i < p->nnodes; i++) {
        if (p->nodes[i].host == host)
            return &p->nodes[i];
    }
    return NULL;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* May the two share a row: most often they come from one line of the hostfile. */
static bool alike(const struct alloc_node *a, const struct alloc_node *b)
{
    return a->slots == b->slots && a->local == b->local && a->port == b->port &&
           same_text(a->user, b->user) && same_text(a->slots_from, b->slots_from);
}

/* One row of the table of hosts: the nodes from `from` up to `to`. */
struct host_row {
    size_t from, to;
    char *names, *ranks; /* owned */
};

static struct host_row next_row(const struct show *s, size_t from)
{
    struct host_row row = {.from = from, .to = from};
    SCOPED(strv_finish) struct strv names = {0};
    SCOPED(idset_finish) struct idset ranks = {0};
    const struct alloc_node *nodes = s->alloc->nodes;
    for (; row.to < s->alloc->nnodes && alike(&nodes[from], &nodes[row.to]); row.to++) {
        const struct plan_node *n = planned(s->plan, &nodes[row.to]);
        strv_push(&names, nodes[row.to].name);
        for (int i = 0; n && i < n->nlocal; i++)
            idset_add(&ranks, n->ranks[i], n->ranks[i]);
    }
    row.names = hostlist_compress(names.v, names.n);
    row.ranks = ranks.n ? idset_text(&ranks) : xstrdup("none");
    return row;
}

static int longest_name(const struct alloc *a)
{
    size_t longest = 4;
    for (size_t i = 0; i < a->nnodes; i++) {
        size_t len = strlen(a->nodes[i].name);
        longest = len > longest ? len : longest;
    }
    return (int)longest;
}

static void say_row(const struct show *s, const struct host_row *row, int width,
                    FILE *out)
{
    const struct alloc_node *n = &s->alloc->nodes[row->from];
    char slots[16] = "-", login[80] = "";
    if (n->slots)
        snprintf(slots, sizeof slots, "%d", n->slots);
    if (n->user)
        snprintf(login, sizeof login, "  (login %.40s)", n->user);
    if (n->port)
        snprintf(login + strlen(login), sizeof login - strlen(login), "  (port %d)",
                 n->port);
    fprintf(out, "  %-*s  %-6s  %-5s  %-12s  %s%s\n", width, row->names,
            n->local ? "local" : "remote", slots, row->ranks,
            n->slots_from ? n->slots_from : "decided on the node: its GPUs, else 1",
            login);
}

static void show_hosts(const struct show *s, FILE *out)
{
    OWNED struct host_row *rows = xcalloc(s->alloc->nnodes, sizeof *rows);
    size_t nrows = 0;
    int width = (int)strlen("host");
    for (size_t i = 0; i < s->alloc->nnodes; i = rows[nrows++].to) {
        rows[nrows] = next_row(s, i);
        int len = (int)strlen(rows[nrows].names);
        width = len > width ? len : width;
    }
    if (strcmp(s->alloc->source, "local") == 0)
        fprintf(out, "hosts: this machine\n");
    else
        fprintf(out, "hosts: %zu from %s\n", s->alloc->nnodes, s->alloc->source);
    fprintf(out, "  %-*s  %-6s  %-5s  %-12s  %s\n", width, "host", "reach", "slots",
            "ranks", "slots from");
    for (size_t i = 0; i < nrows; i++) {
        say_row(s, &rows[i], width, out);
        free(rows[i].names);
        free(rows[i].ranks);
    }
}

/* --- ranks -------------------------------------------------------------------------- */

static const struct binding *binding_of(const struct show *s, int rank)
{
    const struct plan_rank *r = &s->plan->ranks[rank];
    const struct binding *b = s->bindings ? s->bindings[r->node] : NULL;
    return b ? &b[r->local_rank] : NULL;
}

static void cpus_text(const struct binding *b, char *out, size_t size)
{
    const char *s = b && b->ncpus == 1 ? "" : "s";
    if (!b)
        snprintf(out, size, "decided on the node");
    else if (!b->cpus_text)
        snprintf(out, size, "not bound, %d CPU%s", b->ncpus, s);
    else if (b->numa >= 0)
        snprintf(out, size, "%s (NUMA node %d), OMP %d", b->cpus_text, b->numa, b->ncpus);
    else
        snprintf(out, size, "%s, %d CPU%s", b->cpus_text, b->ncpus, s);
}

static void show_ranks(const struct show *s, FILE *out)
{
    static const char *const maps[] = {
        [MAP_BLOCK] = "block", [MAP_CYCLIC] = "cyclic", [MAP_PPR] = "ppr"};
    static const char *const binds[] = {
        [BIND_AUTO] = "auto", [BIND_NONE] = "none",     [BIND_CORE] = "core",
        [BIND_NUMA] = "numa", [BIND_SOCKET] = "socket", [BIND_HWTHREAD] = "hwthread"};
    int width = longest_name(s->alloc);
    fprintf(out, "ranks: %d on %d host%s (from %s; --map-by %s, --bind-to %s)\n",
            s->plan->nranks, s->plan->nnodes, s->plan->nnodes == 1 ? "" : "s",
            s->plan->np_from, maps[s->opts->map_by],
            binds[s->opts->bind_to & ~(enum bind_to)BIND_ONE_GPU]);
    fprintf(out, "  %-6s  %-*s  %-5s  %-5s  %s\n", "rank", width, "host", "local", "GPU",
            "CPUs");
    for (int i = 0; i < s->plan->nranks; i++) {
        const struct plan_rank *r = &s->plan->ranks[i];
        const struct binding *b = binding_of(s, i);
        char cpus[300], gpu[16] = "-";
        cpus_text(b, cpus, sizeof cpus);
        if (!b)
            snprintf(gpu, sizeof gpu, "?");
        else if (b->gpu >= 0)
            snprintf(gpu, sizeof gpu, "%d", b->gpu);
        fprintf(out, "  %-6d  %-*s  %-5d  %-5s  %s\n", i, width,
                s->plan->nodes[r->node].host->name, r->local_rank, gpu, cpus);
    }
}

/* --- environment -------------------------------------------------------------------- */

static struct rank_facts facts_of(const struct show *s, int rank)
{
    const struct plan_rank *r = &s->plan->ranks[rank];
    const struct plan_node *n = &s->plan->nodes[r->node];
    const struct binding *b = binding_of(s, rank);
    struct rank_facts f = *s->facts;
    f.rank = rank;
    f.size = s->plan->nranks;
    f.local_rank = r->local_rank;
    f.local_size = n->nlocal;
    f.node_rank = r->node;
    f.nnodes = s->plan->nnodes;
    f.cross_rank = r->cross_rank;
    f.cross_size = plan_cross_size(s->plan, rank);
    f.hostname = n->host->name;
    f.ncpus = b ? b->ncpus : 0;
    f.gpu = b ? b->gpu_text : NULL;
    if (!b && (s->opts->bind_to & BIND_ONE_GPU) && n->host->slots_by == SLOTS_GPUS)
        f.gpu = "(its GPU)";
    f.interface = s->opts->interface;
    f.rank_names = s->opts->rank_names;
    f.store = s->opts->store;
    f.error_file = "(made at start)";
    if (s->opts->max_restarts > 0 || s->opts->spares > 0 || s->opts->min_nnodes > 0)
        f.kept_memory = "(made at start)";
    if (!f.master_addr)
        f.master_addr = s->opts->master_addr ? s->opts->master_addr : "(chosen at start)";
    if (!f.job_id)
        f.job_id = "(made at start)";
    return f;
}

/* Replace values that are known only at the start (0 until then) by a description. */
static void describe_unknown(struct strv *env, const struct rank_facts *f)
{
    const char *threads = strv_env_get(env, "OMP_NUM_THREADS");
    if (f->ncpus == 0 && threads && strcmp(threads, "0") == 0)
        strv_env_set(env, "OMP_NUM_THREADS", "(its number of CPUs)");
}

static void on_note(const struct env_note *n, void *arg)
{
    static const char *const what[] = {[ENV_SET] = "set",
                                       [ENV_REPLACED] = "replaced",
                                       [ENV_KEPT] = "kept",
                                       [ENV_REMOVED] =
                                           "removed, as another launcher set it"};
    FILE *out = arg;
    fprintf(out, "  %s is %s (here '%s'%s)\n", n->name, what[n->origin],
            n->old ? n->old : "", n->user ? ", with -x" : "");
}

/* `notes`: print what was changed there; NULL: nowhere. */
static void rank_env(const struct show *s, int rank, FILE *notes, struct strv *env)
{
    struct rank_facts f = facts_of(s, rank);
    struct contract_base base;
    contract_base_init(&base, s->env, s->user_set);
    contract_apply(&f, &base, env, notes ? on_note : NULL, notes);
    contract_base_finish(&base);
    describe_unknown(env, &f);
}

/* Is the value printed: set by ddprun or named with -x. */
static bool is_shown(const struct show *s, const char *entry)
{
    return strv_has(s->user_set, entry, strcspn(entry, "=")) || contract_knows(entry);
}

/* The names of inherited variables, several per line. */
static void print_inherited(const struct show *s, const struct strv *env, FILE *out)
{
    int used = 0;
    fprintf(out, "  inherited:\n");
    for (size_t i = 0; i < env->n; i++) {
        int len = (int)strcspn(env->v[i], "=");
        if (is_shown(s, env->v[i]))
            continue;
        bool more = used > 0 && used + len < WIDTH - 4;
        fprintf(out, "%s%.*s", more ? " " : used ? "\n    " : "    ", len, env->v[i]);
        used = more ? used + 1 + len : len;
    }
    fputs(used ? "\n" : "    nothing\n", out);
}

/* The entries of `env` that are not in `first`, in one line. */
static void print_difference(int rank, const struct strv *env, const struct strv *first,
                             FILE *out)
{
    fprintf(out, "  %d:", rank);
    for (size_t i = 0; i < env->n; i++) {
        if (!strv_has(first, env->v[i], strlen(env->v[i])))
            fprintf(out, " %s", env->v[i]);
    }
    fputc('\n', out);
}

static void show_environment(const struct show *s, FILE *out)
{
    SCOPED(strv_finish) struct strv first = {0};
    fprintf(out, "environment of rank 0:\n");
    rank_env(s, 0, NULL, &first);
    for (size_t i = 0; i < first.n; i++) {
        if (is_shown(s, first.v[i]))
            fprintf(out, "  %s\n", first.v[i]);
    }
    print_inherited(s, &first, out);
    SCOPED(strv_finish) struct strv again = {0};
    /* of the last rank: shows what an outer launcher's rank 0 has left behind */
    rank_env(s, s->plan->nranks - 1, out, &again);
    if (s->plan->nranks > 1)
        fprintf(out, "environment of the other ranks, differences:\n");
    for (int i = 1; i < s->plan->nranks; i++) {
        SCOPED(strv_finish) struct strv env = {0};
        rank_env(s, i, NULL, &env);
        print_difference(i, &env, &first, out);
    }
}

/* --- commands ----------------------------------------------------------------------- */

static void show_programs(const struct opts *opts, FILE *out)
{
    size_t nwords = 0;
    while (opts->argv[nwords])
        nwords++;
    for (size_t i = 0; i <= opts->apps.n; i++) {
        struct app app, next = {.first = (unsigned)opts->np};
        SCOPED(strv_finish) struct strv words = {0};
        apps_get(&opts->apps, i, nwords, &app);
        if (i < opts->apps.n)
            apps_get(&opts->apps, i + 1, nwords, &next);
        for (size_t w = 0; w < app.nwords; w++)
            strv_push(&words, opts->argv[app.word + w]);
        OWNED char *program = shell_join(words.v);
        if (opts->apps.n == 0)
            fprintf(out, "  each rank: %s\n", program);
        else
            fprintf(out,
                    next.first - app.first == 1 ? "  rank %u: %.0u%s\n"
                                                : "  ranks %u-%u: %s\n",
                    app.first, next.first - 1, program);
    }
}

static void show_commands(const struct show *s, FILE *out)
{
    fprintf(out, "commands:\n");
    for (char *const *c = s->commands; c && *c; c++)
        fprintf(out, "  %s\n", *c);
    show_programs(s->opts, out);
    for (size_t i = 0; i < s->opts->origins.n; i++)
        fprintf(out, "  options from %s\n", s->opts->origins.v[i]);
    if (s->opts->interpreter)
        fprintf(out, "  interpreter: %s\n", s->opts->interpreter);
    for (char *const *note = s->notes; note && *note; note++)
        fprintf(out, "  %s\n", *note);
}

void show_dry_run(const struct show *s, FILE *out)
{
    show_hosts(s, out);
    show_ranks(s, out);
    show_environment(s, out);
    show_commands(s, out);
    fprintf(out, "nothing was started (--dry-run)\n");
}
