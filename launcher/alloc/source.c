/* launcher/alloc/source.c - see source.h */
#define LOG_SUBSYS "options"
#include "launcher/alloc/source.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/alloc/hosts.h"
#include "launcher/alloc/hosttext.h"
#include "launcher/alloc/sched.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* In order of precedence: explicit options first, this machine last. Beside a scheduler's
 * allocation, -H selects from its nodes. */
static const struct alloc_source *const sources[] = {
    &alloc_discovery, &alloc_hostfile,     &alloc_slurm, &alloc_sge,
    &alloc_pbs,       &alloc_lsf,          &alloc_flux,  &alloc_sagemaker,
    &alloc_hosts_arg, &alloc_mpi_hostfile, &alloc_local,
};

/* --- which of the nodes is this machine --------------------------------------------- */

/* 127.0.0.1, ::1 or an address of one of our interfaces. Other addresses of 127/8 count
 * as separate hosts, to simulate several hosts on one machine. */
static bool is_own_address(const char *name, const struct strv *own)
{
    struct in6_addr a; /* or a struct in_addr */
    char text[INET6_ADDRSTRLEN];
    int family = strchr(name, ':') ? AF_INET6 : AF_INET;
    return inet_pton(family, name, &a) == 1 && inet_ntop(family, &a, text, sizeof text) &&
           strv_has(own, text, strlen(text));
}

/* OWN_LABEL: "vm.cluster" where we are "vm". Machines of other domains may be called so,
 * too. */
enum own { OWN_NOT, OWN_LABEL, OWN_SURE };

static enum own is_own_name(const char *name, const char *own)
{
    size_t len = strcspn(own, ".");
    if (alloc_is_localhost(name) || strcasecmp(name, own) == 0)
        return OWN_SURE;
    if (strncasecmp(name, own, len) != 0 || len == 0)
        return OWN_NOT;
    if (name[len] == '.' && !own[len])
        return OWN_LABEL;
    return name[len] ? OWN_NOT : OWN_SURE;
}

/* The limit of a search by address, and of all look-ups of a search. */
enum { LOOK_UPS = 16, LOOK_UP_MS = 10000 };

/* Names whose first label is our name are ours if their address is; a single one also if
 * it cannot be resolved, or a scheduler lists it. */
static void find_by_label(struct alloc *a, const char *own)
{
    char text[INET6_ADDRSTRLEN];
    const struct alloc_node *other = NULL; /* ours, or may be */
    int64_t until = now_ms() + LOOK_UP_MS;
    bool several = false;
    for (size_t i = 0; i < a->nnodes; i++) {
        const struct alloc_node *n = &a->nodes[i];
        if (!n->local && is_own_name(n->name, own) != OWN_LABEL)
            continue;
        several = several || (other && strcasecmp(other->name, n->name) != 0);
        other = n;
    }
    for (size_t i = 0; i < a->nnodes; i++) {
        struct alloc_node *n = &a->nodes[i];
        if (n->local || is_own_name(n->name, own) != OWN_LABEL)
            continue;
        enum sock_own is = several || !a->scheduler_owned
                               ? sock_own_addr(n->name, until, text, sizeof text)
                               : SOCK_OWN;
        n->local =
            is == SOCK_OWN || is == SOCK_LOOPBACK || (is == SOCK_UNKNOWN && !several);
    }
}

static void find_local(struct alloc *a)
{
    char own[HOST_NAME_MAX + 1] = "";
    SCOPED(strv_finish) struct strv all = {0};
    bool by_label = false;
    gethostname(own, sizeof own - 1);
    for (size_t i = 0; i < a->nnodes; i++) {
        struct alloc_node *node = &a->nodes[i];
        if (host_is_address(node->name, strlen(node->name))) {
            if (all.n == 0)
                sock_own_addrs(false, &all);
            node->local = is_own_address(node->name, &all);
        } else {
            enum own is = is_own_name(node->name, own);
            node->local = node->local || is == OWN_SURE;
            by_label |= is == OWN_LABEL;
        }
    }
    if (by_label)
        find_by_label(a, own);
}

/* Merge "localhost", our name and our addresses into one node; their slots are added, as
 * for a repeated host. */
static void fold_local(struct alloc *a)
{
    struct alloc_node *first = NULL;
    OWNED bool *keep = xcalloc(a->nnodes, sizeof *keep);
    for (size_t i = 0; i < a->nnodes; i++) {
        struct alloc_node *n = &a->nodes[i];
        keep[i] = !n->local || !first;
        if (n->local && first && first->slots_else > 0 && n->slots_else > 0) {
            first->slots_else +=
                n->slots_else; /* a scheduler's numbers: GPUs take precedence */
        } else if (n->local && first) {
            int slots = (first->slots ? first->slots : 1) + (n->slots ? n->slots : 1);
            slots = slots < SLOTS_MAX ? slots : SLOTS_MAX;
            alloc_set_slots(first, slots, SLOTS_GIVEN,
                            "'%s' and '%s' are one machine: %d", first->name, n->name,
                            slots);
        } else if (n->local) {
            first = n;
        }
    }
    if (first)
        alloc_keep(a, keep);
}

static bool is_own_login(const char *name)
{
    const char *user = getenv("USER");
    if (user && strcmp(user, name) == 0)
        return true;
    const struct passwd *own = getpwuid(geteuid());
    return own && strcmp(own->pw_name, name) == 0;
}

/* The agent of this machine is not started by ssh. */
static void warn_of_login(const struct alloc_node *n)
{
    bool user = n->user && !is_own_login(n->user);
    OWNED char *what = user ? xasprintf("login name '%s'", n->user) : NULL;
    if (n->port)
        xappendf(&what, "%sport %d", user ? " and " : "", n->port);
    if (what)
        log_warn("'%s' is this machine, where ranks run as you and without ssh: %s %s no "
                 "effect",
                 n->name, what, user && n->port ? "have" : "has");
}

/* --- reading and settling ----------------------------------------------------------- */

static const struct alloc_source *source_named(const struct opts *opts,
                                               struct ddp_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        if (strcmp(sources[i]->name, opts->alloc) != 0)
            continue;
        if (sources[i]->detect(opts))
            return sources[i];
        err_set(err, "--alloc %s: not found here; %s", opts->alloc,
                sources[i]->job_var ? "is this inside one of its jobs?"
                                    : "no option and no variable names its hosts");
        return NULL;
    }
    OWNED char *names = NULL;
    for (size_t i = 0; i < ARRAY_LEN(sources); i++)
        xappendf(&names, "%s%s", i ? ", " : "", sources[i]->name);
    err_set(err, "--alloc '%s' is not one of %s", opts->alloc, names);
    return NULL;
}

/* "SLURM_JOB_ID=7": the variable by which a scheduler was found. */
static char *job_of(const struct alloc_source *s)
{
    const char *name =
        s->old_job_var && !sched_env(s->job_var) ? s->old_job_var : s->job_var;
    const char *value = sched_env(name);
    return xasprintf("%s=%s", name, value ? SANITIZED(value) : "");
}

/* The first source that detects itself; two schedulers at once are an error. */
static const struct alloc_source *source_found(const struct opts *opts,
                                               struct ddp_err *err)
{
    const struct alloc_source *found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        const struct alloc_source *s = sources[i];
        if ((found && !(found->job_var && s->job_var)) || !s->detect(opts))
            continue;
        if (found) {
            OWNED char *one = job_of(found);
            OWNED char *other = job_of(s);
            err_set(err,
                    "two schedulers at once: %s and %s; --alloc %s or --alloc %s settles "
                    "it",
                    one, other, found->name, s->name);
            return NULL;
        }
        found = s;
    }
    return found; /* the last one always applies */
}

/* Find this machine among the nodes by address: a node's name may differ from its own. */
static bool find_by_address(struct alloc *a)
{
    char text[INET6_ADDRSTRLEN];
    int64_t until = now_ms() + LOOK_UP_MS;
    for (size_t i = 0; i < a->nnodes && i < LOOK_UPS; i++) {
        a->nodes[i].local =
            sock_own_addr(a->nodes[i].name, until, text, sizeof text) == SOCK_OWN;
        if (a->nodes[i].local)
            return true;
    }
    return false;
}

/* Refuse a job's variables inherited on a machine outside of the job, by ssh say. */
static int check_here(const struct alloc_source *s, struct alloc *a, struct ddp_err *err)
{
    const char *node = s->node_var ? getenv(s->node_var) : NULL;
    for (size_t i = 0; i < a->nnodes; i++) {
        if (a->nodes[i].local)
            return 0;
    }
    if ((!node && !s->on_own_node) || find_by_address(a))
        return 0; /* a front end, outside its allocation */
    OWNED char *job = node ? xasprintf("%s=%s", s->node_var, SANITIZED(node)) : job_of(s);
    err_set(
        err,
        "%s, but this machine is not one of the job's: inherited variables? --alloc %s "
        "uses them anyway, --alloc local ignores them",
        job, s->name);
    return -1;
}

static int fill(struct alloc *a, const struct alloc_source *source,
                const struct opts *opts, struct ddp_err *err)
{
    TRY(source->read(opts, a, err));
    if (opts->hosts && source != &alloc_hosts_arg)
        TRY(hosts_arg_filter(opts, a, err));
    if (a->nnodes == 0)
        return err_set(err, "no host is left: every one of %s is excluded", a->source);
    find_local(a);
    if (!opts->alloc && !opts->hosts)
        TRY(check_here(source, a, err));
    fold_local(a);
    for (size_t i = 0; i < a->nnodes; i++) {
        if (a->nodes[i].local)
            warn_of_login(&a->nodes[i]);
    }
    return 0;
}

struct alloc *alloc_read(const struct opts *opts, struct ddp_err *err)
{
    const struct alloc_source *source =
        opts->alloc ? source_named(opts, err) : source_found(opts, err);
    if (!source)
        return NULL;
    struct alloc *a = xcalloc(1, sizeof *a);
    a->source = source == &alloc_hosts_arg ? opts_hosts_by(opts) : source->name;
    a->slots_hint = source->slots_hint;
    a->loss_hint = source->loss_hint;
    if (fill(a, source, opts, err) < 0) {
        alloc_destroy(a);
        return NULL;
    }
    return a;
}
