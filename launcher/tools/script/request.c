/* launcher/tools/script/request.c - see request.h
 *
 * First the numbers, each from the user, else from the partition, else a default; then
 * the limits, one function each; then the partition: the first whose numbers and limits
 * fit.
 */
#include "launcher/tools/script/request.h"
#include "launcher/cli/walltime.h"

#include "common/err.h"
#include "common/mem.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIME_S = 3600, WARNING_S = 120, NAME_MAX_LEN = 15 };
enum { LEAST_S = 60, SLURM_WARNING_MAX_S = 65535 };

/* --- numbers ------------------------------------------------------------------------ */

static int at_least(int a, int b)
{
    return a > b ? a : b;
}

/* Computes nodes, GPUs and ranks from those that were given. */
static int count_ranks(const struct opts *opts, struct request *r, struct ddp_err *err)
{
    int have = r->partition ? r->partition->gpus : -1;
    r->gpus = opts->gpus_per_node >= 0 ? opts->gpus_per_node : at_least(have, 0);
    int per_node = opts_per_node(opts);
    r->ranks_per_node = per_node ? per_node : at_least(r->gpus, 1);
    r->nodes = opts->nnodes ? opts->nnodes : 1;
    if (opts->np && !opts->nnodes && !per_node && r->gpus == 0) {
        r->ranks_per_node = opts->np; /* one node, as without a scheduler */
    } else if (opts->np && !opts->nnodes) {
        r->nodes = (opts->np + r->ranks_per_node - 1) / r->ranks_per_node;
        if (opts->np < r->ranks_per_node) {
            r->ranks_per_node = opts->np;
            r->gpus = opts->gpus_per_node >= 0 || r->gpus < opts->np ? r->gpus : opts->np;
        }
    } else if (opts->np && !per_node && r->gpus == 0) {
        r->ranks_per_node = (opts->np + r->nodes - 1) / r->nodes;
    }
    if (r->gpus > 0 && r->ranks_per_node > r->gpus && !opts->oversubscribe)
        return err_set(
            err,
            "%d ranks on the %d GPU%s of a node; write --nproc-per-node %d, or "
            "--oversubscribe",
            r->ranks_per_node, r->gpus, r->gpus == 1 ? "" : "s", r->gpus);
    r->hosts = r->nodes + opts->spares;
    r->least = opts->min_nnodes ? opts->min_nnodes : r->nodes;
    if ((int64_t)r->hosts * r->ranks_per_node > INT_MAX)
        return err_set(err, "%d nodes with %d ranks each are too many", r->nodes,
                       r->ranks_per_node);
    int room = r->nodes * r->ranks_per_node;
    r->ranks = opts->np ? opts->np : room;
    if (r->ranks > room)
        return err_set(err, "%d ranks on %d node%s of %d are too many; write -N %d",
                       r->ranks, r->nodes, r->nodes == 1 ? "" : "s", r->ranks_per_node,
                       (r->ranks + r->ranks_per_node - 1) / r->ranks_per_node);
    if (r->ranks < r->nodes)
        return err_set(err, "%d rank%s cannot be on %d nodes; write -N %d", r->ranks,
                       r->ranks == 1 ? "" : "s", r->nodes, r->ranks);
    return 0;
}

/* CPUs and memory in proportion to the GPUs used; a job without GPUs gets whole nodes. */
static int share_node(const struct opts *opts, struct request *r, struct ddp_err *err)
{
    const struct partition *p = r->partition;
    bool part = p && !p->whole && p->gpus > 0 && r->gpus > 0 && r->gpus < p->gpus;
    int cores = p ? p->cores : 0;
    if (part)
        cores = (int)((int64_t)cores * r->gpus / p->gpus);
    r->cpus_per_rank =
        opts->cpus_per_task ? opts->cpus_per_task : cores / r->ranks_per_node;
    if (r->cpus_per_rank == 0 && cores > 0)
        r->cpus_per_rank = 1;
    int64_t cpus = opts->cpus_per_task || cores == 0
                       ? (int64_t)at_least(r->cpus_per_rank, 1) * r->ranks_per_node
                       : cores;
    if (cpus > INT_MAX / r->hosts)
        return err_set(err, "%d node%s with %" PRId64 " CPUs each are too many", r->hosts,
                       r->hosts == 1 ? "" : "s", cpus);
    r->cpus_per_node = (int)cpus;
    r->memory_said = opts->memory_mb > 0;
    r->memory_mb = r->memory_said        ? opts->memory_mb
                   : part                ? p->memory_mb * r->gpus / p->gpus
                   : (p && p->cores > 0) ? -1
                                         : 0;
    return 0;
}

/* --- limits ------------------------------------------------------------------------- */

/* `instead` ends the message: ", or --partition NAME", or "". */

static int check_gpus(const struct request *r, const char *instead, struct ddp_err *err)
{
    const struct partition *p = r->partition;
    if (p->gpus < 0 || r->gpus <= p->gpus)
        return 0;
    if (p->gpus == 0)
        return err_set(err, "the nodes of %s have no GPUs; write --gpus-per-node 0%s",
                       p->name, instead);
    char more[32] = "";
    int64_t nodes = ((int64_t)r->nodes * r->gpus + p->gpus - 1) / p->gpus;
    if (p->nodes == 0 || nodes <= p->nodes)
        snprintf(more, sizeof more, " -N %" PRId64, nodes);
    return err_set(err, "a node of %s has %d GPU%s, not %d; write --gpus-per-node %d%s%s",
                   p->name, p->gpus, p->gpus == 1 ? "" : "s", r->gpus, p->gpus, more,
                   instead);
}

static int check_nodes(const struct opts *opts, const struct request *r,
                       const char *instead, struct ddp_err *err)
{
    const struct partition *p = r->partition;
    if (p->nodes == 0 || r->hosts <= p->nodes)
        return 0;
    if (opts->spares > 0)
        return err_set(err,
                       "a job in %s has at most %d node%s, not %d and %d spare%s; "
                       "write a smaller -N or --spares%s",
                       p->name, p->nodes, p->nodes == 1 ? "" : "s", r->nodes,
                       opts->spares, opts->spares == 1 ? "" : "s", instead);
    char where[100] = "";
    if (!opts->partition)
        snprintf(where, sizeof where, "--partition %s ", p->name);
    struct opts fewer = *opts;
    struct request with = *r;
    struct ddp_err no;
    fewer.nnodes = p->nodes;
    bool have_room = count_ranks(&fewer, &with, &no) == 0;
    return err_set(err, "a job in %s has at most %d node%s, not %d; write %s%s %d%s",
                   p->name, p->nodes, p->nodes == 1 ? "" : "s", r->nodes, where,
                   have_room ? "-N" : "-np",
                   have_room ? p->nodes : p->nodes * r->ranks_per_node, instead);
}

static int check_cores(const struct opts *opts, const struct request *r,
                       const char *instead, struct ddp_err *err)
{
    const struct partition *p = r->partition;
    int64_t wanted = (int64_t)r->ranks_per_node * at_least(r->cpus_per_rank, 1);
    if (p->cores == 0 || wanted <= p->cores)
        return 0;
    if (!opts->cpus_per_task || r->ranks_per_node > p->cores)
        return err_set(err,
                       "a node of %s has %d cores, too few for %d ranks; write "
                       "--nproc-per-node %d%s",
                       p->name, p->cores, r->ranks_per_node, p->cores, instead);
    return err_set(err,
                   "a node of %s has %d cores, not %d ranks x %d = %" PRId64
                   "; write --cpus-per-task %d%s",
                   p->name, p->cores, r->ranks_per_node, r->cpus_per_rank, wanted,
                   p->cores / r->ranks_per_node, instead);
}

static int check_memory(const struct request *r, const char *instead, struct ddp_err *err)
{
    const struct partition *p = r->partition;
    if (p->memory_mb == 0 || r->memory_mb <= p->memory_mb)
        return 0;
    return err_set(err,
                   "a node of %s has %" PRId64 "G for jobs; write --mem %" PRId64 "G%s",
                   p->name, p->memory_mb / 1024, p->memory_mb / 1024, instead);
}

static int check_time(const struct request *r, const char *instead, struct ddp_err *err)
{
    const struct partition *p = r->partition;
    char wanted[40], allowed[40];
    walltime_say(r->time_s, wanted, sizeof wanted);
    if (p->time_s > 0 && r->time_s > p->time_s) {
        walltime_say(p->time_s, allowed, sizeof allowed);
        return err_set(err, "a job in %s runs for at most %s, not %s; write --time %s%s",
                       p->name, allowed, wanted, allowed, instead);
    }
    double hours = (double)r->time_s / 3600 * r->hosts;
    if (p->node_hours > 0 && hours > p->node_hours) {
        walltime_say((int64_t)(p->node_hours / r->hosts * 3600), allowed, sizeof allowed);
        return err_set(err,
                       "a job in %s has at most %g node-hours, not %d x %s; write "
                       "--time %s%s",
                       p->name, p->node_hours, r->hosts, wanted, allowed, instead);
    }
    return 0;
}

static int check_account(const struct request *r, struct ddp_err *err)
{
    const struct site *s = r->site;
    if (!s->account || r->account)
        return 0;
    return err_set(err, "%s: a job must name an account; write --account NAME%s%s%s",
                   s->name, s->account_hint ? " (" : "",
                   s->account_hint ? s->account_hint : "", s->account_hint ? ")" : "");
}

/* The modules and the imports of the program come out of the time before the warning: it
 * is to be a minute, or an eighth of a short job. Slurm's --signal has a limit of its
 * own. */
static int check_warning(const struct opts *opts, const struct request *r,
                         struct ddp_err *err)
{
    char less[40], whole[40], left[40] = "no time";
    int64_t left_s = r->time_s - r->warning_s;
    if (r->site->scheduler == SCHED_SLURM && r->warning_s > SLURM_WARNING_MAX_S) {
        walltime_say(SLURM_WARNING_MAX_S, less, sizeof less);
        return err_set(err, "--warning: Slurm takes at most %s; write --warning %s", less,
                       less);
    }
    if (left_s < LEAST_S && left_s < r->time_s / 8) {
        if (left_s > 0)
            walltime_say(left_s, left, sizeof left);
        walltime_say(r->time_s, whole, sizeof whole);
        walltime_say(at_least((int)(r->time_s / 4), 1), less, sizeof less);
        return err_set(err, "--warning leaves the program %s of %s; write --warning %s",
                       left, whole, less);
    }
    int64_t grace_s = opts_given(opts, "grace") ? opts->grace_ms / 1000 : 0;
    if (grace_s >= r->warning_s) {
        walltime_say(grace_s, left, sizeof left);
        walltime_say(r->warning_s, whole, sizeof whole);
        walltime_say((grace_s * 4 + 2) / 3, less, sizeof less);
        return err_set(
            err,
            "--grace %s, but the job is killed %s after the ranks get SIGTERM; "
            "write --warning %s",
            left, whole, less);
    }
    return 0;
}

static int check_limits(const struct opts *opts, const struct request *r,
                        const char *instead, struct ddp_err *err)
{
    if (!r->partition)
        return 0;
    if (check_gpus(r, instead, err) < 0 || check_nodes(opts, r, instead, err) < 0 ||
        check_cores(opts, r, instead, err) < 0 || check_memory(r, instead, err) < 0 ||
        check_time(r, instead, err) < 0)
        return err_prefix(err, "%s", r->site->name);
    return 0;
}

/* --- which partition ---------------------------------------------------------------- */

/* "dgx, dgx-preempt, gpu" */
static void list_partitions(const struct site *s, char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < s->npartitions && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "",
                              s->partitions[i].name);
}

/* The numbers of the job in its partition. */
static int count(const struct opts *opts, struct request *r, struct ddp_err *err)
{
    return count_ranks(opts, r, err) < 0 || share_node(opts, r, err) < 0 ? -1 : 0;
}

static bool fits(const struct opts *opts, const struct request *r,
                 const struct partition *p)
{
    struct request in = *r;
    struct ddp_err no;
    in.partition = p;
    return count(opts, &in, &no) == 0 && check_limits(opts, &in, "", &no) == 0;
}

/* Would a job without GPUs occupy GPU nodes? */
static bool wasted(const struct partition *p, int gpus)
{
    return gpus == 0 && p->gpus > 0;
}

/* For the end of a message: another partition in which the job fits, the one with the
 * fewest GPUs; else "". */
static const char *other_partition(const struct opts *opts, const struct request *r,
                                   char *text, size_t size)
{
    const struct partition *best = NULL;
    for (size_t i = 0; i < r->site->npartitions; i++) {
        const struct partition *p = &r->site->partitions[i];
        if (p != r->partition && (p->gpus < 0 || p->gpus >= r->gpus) &&
            !wasted(p, r->gpus) && (!best || p->gpus < best->gpus) && fits(opts, r, p))
            best = p;
    }
    snprintf(text, size, "%s%s", best ? ", or --partition " : "", best ? best->name : "");
    return text;
}

/* The largest partition for this kind of job, to name in the message if none fits. */
static const struct partition *nearest(const struct site *s, int gpus)
{
    const struct partition *best = NULL;
    for (size_t i = 0; i < s->npartitions; i++) {
        const struct partition *p = &s->partitions[i];
        bool has = p->gpus < 0 || p->gpus >= gpus;
        bool best_has = best && (best->gpus < 0 || best->gpus >= gpus);
        int nodes = p->nodes ? p->nodes : INT_MAX;
        int most = !best ? 0 : best->nodes ? best->nodes : INT_MAX;
        bool roomier = has ? nodes > most : p->gpus > (best ? best->gpus : 0);
        if (!wasted(p, gpus) &&
            (!best || (has && !best_has) || (has == best_has && roomier)))
            best = p;
    }
    return best ? best : &s->partitions[0];
}

/* The first partition that fits, rather one whose nodes others cannot take; else the one
 * to name in the error. After a partition with GPUs that the job does not fit, those
 * without GPUs are skipped: the job would lose its GPUs without a word. */
static const struct partition *first_fit(const struct opts *opts, const struct request *r)
{
    const struct partition *preemptible = NULL, *small = NULL;
    bool gpus = false; /* the job would have some, but for a limit */
    for (size_t i = 0; i < r->site->npartitions; i++) {
        const struct partition *p = &r->site->partitions[i];
        struct request in = *r;
        struct ddp_err no;
        in.partition = p;
        if (wasted(p, opts->gpus_per_node) || (gpus && p->gpus == 0))
            continue;
        if (fits(opts, r, p)) {
            if (!p->preemptible)
                return p;
            preemptible = preemptible ? preemptible : p;
        } else if (!small && p->gpus > 0 && count_ranks(opts, &in, &no) < 0) {
            small = p;
        }
        gpus = gpus || p->gpus > 0;
    }
    return small         ? small
           : preemptible ? preemptible
                         : nearest(r->site, opts->gpus_per_node);
}

/* The partition of --partition, else the first that fits, else the nearest one. */
static int choose_partition(const struct opts *opts, struct request *r,
                            struct ddp_err *err)
{
    const struct site *s = r->site;
    char all[300];
    r->partition_name = opts->partition;
    if (s->npartitions == 0)
        return 0;
    r->partition =
        opts->partition ? site_partition(s, opts->partition) : first_fit(opts, r);
    if (!r->partition) {
        list_partitions(s, all, sizeof all);
        return err_set(err, "%s has no partition '%s'; write --partition with one of %s",
                       s->name, opts->partition, all);
    }
    r->partition_name = r->partition->name;
    return 0;
}

/* A preemptible partition is used only if --partition names it. */
static int check_preemption(const struct opts *opts, const struct request *r,
                            struct ddp_err *err)
{
    const struct partition *p = r->partition;
    if (!p || !p->preemptible || opts->partition)
        return 0;
    return err_set(
        err,
        "%s: only %s has room for this job, and others may take its nodes at any "
        "time; write --partition %s --requeue",
        r->site->name, p->name, p->name);
}

static int check(const struct opts *opts, const struct request *r, struct ddp_err *err)
{
    char instead[160];
    if (check_account(r, err) < 0 || check_warning(opts, r, err) < 0)
        return -1;
    if (check_limits(opts, r, "", err) < 0) /* only then is another one looked for */
        return check_limits(opts, r, other_partition(opts, r, instead, sizeof instead),
                            err);
    return check_preemption(opts, r, err);
}

/* --- name --------------------------------------------------------------------------- */

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

/* A job name that all schedulers accept: no leading digit (Grid Engine, PBS), at most 15
 * characters (PBS). A name of the user that does not comply is refused; one derived from
 * the program is changed. */
static int name_job(const struct opts *opts, struct request *r, struct ddp_err *err)
{
    const char *given = opts->job_name;
    if (given) {
        size_t len = 0;
        while (name_char(given[len]))
            len++;
        if (given[len] || !isalpha((unsigned char)given[0]))
            return err_set(err,
                           "--job-name '%.60s': a letter, then letters, digits, '-', '_' "
                           "and '.' are what all schedulers take",
                           given);
        if (r->site->scheduler == SCHED_PBS && len > NAME_MAX_LEN)
            return err_set(err, "--job-name '%.60s' has %zu characters; PBS takes %d",
                           given, len, NAME_MAX_LEN);
        r->name = xstrdup(given);
        return 0;
    }
    /* the script's, where the program is an interpreter */
    const char *program = opts->argv[0] ? opts->argv[0] : "job";
    const char *base = basename(program);
    bool python = strncmp(base, "python", 6) == 0;
    if (python && opts->argv[1] && opts->argv[1][0] != '-')
        base = basename(opts->argv[1]);
    r->name = xasprintf("%s%.*s", isalpha((unsigned char)*base) ? "" : "job-",
                        NAME_MAX_LEN - 4, base);
    char *dot = strchr(r->name + 1, '.');
    if (dot)
        *dot = '\0';
    for (char *c = r->name; *c; c++)
        *c = name_char(*c) ? *c : '-';
    return 0;
}

int request_make(const struct opts *opts, const struct site *site, struct request *r,
                 struct ddp_err *err)
{
    *r = (struct request){.site = site, .account = opts->account};
    r->time_s = opts->walltime_s ? opts->walltime_s : DEFAULT_TIME_S;
    r->warning_s = opts->warning_ms ? opts->warning_ms / 1000 : WARNING_S;
    if (!opts->warning_ms && r->warning_s > r->time_s / 4)
        r->warning_s = at_least((int)(r->time_s / 4), 1);
    if (choose_partition(opts, r, err) < 0 || count(opts, r, err) < 0 ||
        check(opts, r, err) < 0)
        return -1;
    return name_job(opts, r, err);
}

void request_finish(struct request *r)
{
    free(r->name);
    *r = (struct request){0};
}
