/* launcher/alloc/slurm.c - the allocation of a Slurm job
 *
 * Two sets of variables must not be mixed: the job's, and the step's if ddprun runs in a
 * step, where srun has overwritten some of the job's variables but not its list of nodes
 * (sbatch(1), srun(1), "OUTPUT ENVIRONMENT VARIABLES"). In a step only the step's own set
 * is consistent. A step of several tasks may run several instances of ddprun, each of
 * which would start the whole job: refused.
 *
 * Slots: the GPUs requested per node; else tasks, if tasks were requested (without -n
 * SLURM_TASKS_PER_NODE counts CPUs and is not used); else the GPUs found on the nodes.
 * CUDA_VISIBLE_DEVICES is not used, as the user may have set it.
 */
#include "common/err.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Step ids from here on are special: interactive, batch, extern, pending. */
#define STEP_SPECIAL 0xfffffff0UL

static const char *job_nodelist(void)
{
    const char *list = sched_env("SLURM_JOB_NODELIST");
    return list ? list : sched_env("SLURM_NODELIST");
}

static bool detect(const struct opts *opts)
{
    return (sched_env("SLURM_JOB_ID") || sched_env("SLURM_JOBID")) && job_nodelist();
}

static bool in_step(void)
{
    const char *id = sched_env("SLURM_STEP_ID");
    return id && strtoul(id, NULL, 10) < STEP_SPECIAL && sched_env("SLURM_STEP_NODELIST");
}

/* --- nodes -------------------------------------------------------------------------- */

static int add_nodes(const char *name, const char *list, struct alloc *a,
                     struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv names = {0};
    if (hostlist_expand(list, &names, err) < 0)
        return err_prefix(err, "%s", name);
    if (names.n == 0)
        return err_set(err, "%s='%s' names no node", name, SANITIZED(list));
    for (size_t i = 0; i < names.n; i++) {
        if (!sched_add(a, name, names.v[i], err))
            return -1;
    }
    return 0;
}

/* --- slots -------------------------------------------------------------------------- */

/* The variables of one set: the job's, the step's, or those of a component of a
 * heterogeneous job (suffix "_HET_GROUP_1"). */
struct names {
    char nodelist[64], tasks[64], ntasks[64];
};

static long sum_up_to(const int *counts, size_t n, int most)
{
    long sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += counts[i] < most ? counts[i] : most;
    return sum;
}

/* srun spreads -n tasks evenly when fewer are requested than fit; the first nodes get the
 * remainder. */
static void limit_total(int *counts, size_t n, long total)
{
    int low = 0, high = INT_MAX; /* the sum fits up to low, and not up to high */
    if (sum_up_to(counts, n, high) <= total)
        return;
    while (high - low > 1) {
        int most = low + (high - low) / 2;
        *(sum_up_to(counts, n, most) <= total ? &low : &high) = most;
    }
    long rest = total - sum_up_to(counts, n, low);
    for (size_t i = 0; i < n; i++) {
        if (counts[i] > low)
            counts[i] = low + (rest-- > 0);
    }
}

static int tasks_of(const struct names *v, struct alloc *a, size_t first,
                    struct ddp_err *err)
{
    const char *tasks = sched_env(v->tasks), *ntasks = sched_env(v->ntasks);
    if (!tasks || !ntasks)
        return 0; /* no tasks requested */
    size_t n = a->nnodes - first;
    OWNED int *counts = xcalloc(n, sizeof *counts);
    TRY(sched_counts(v->tasks, tasks, counts, n, err));
    long total = strtol(ntasks, NULL, 10);
    if (total < (long)n)
        return err_set(err,
                       "%s=%s: fewer tasks than the %zu nodes; -H names those to use",
                       v->ntasks, SANITIZED(ntasks), n);
    limit_total(counts, n, total);
    for (size_t i = 0; i < n; i++) {
        struct alloc_node *node = &a->nodes[first + i];
        alloc_set_slots(node, 0, SLOTS_UNSET, "%s=%s", v->tasks, SANITIZED(tasks));
        node->slots_else = counts[i];
    }
    return 0;
}

static void set_all_slots(struct alloc *a, int slots, const char *name, const char *value)
{
    for (size_t i = 0; i < a->nnodes; i++) {
        alloc_set_slots(&a->nodes[i], slots, SLOTS_GIVEN, "%s=%s", name,
                        SANITIZED(value));
        a->nodes[i].slots_else = 0;
    }
}

/* Slurm 20.11 and older give only the device list of this node. */
static int gpus_listed(const char **name, const char **text)
{
    if (!in_step()) /* else those of the job's first node */
        *text = sched_env(*name = "SLURM_JOB_GPUS");
    if (!*text)
        *text = sched_env(*name = "SLURM_STEP_GPUS");
    return *text ? sched_devices(*text) : 0;
}

bool sched_slurm_gpus_per_task(void)
{
    /* from 23.11 on, with all that a task has: "cpu=2,gres/gpu:h100=1" */
    const char *of_task = sched_env("SLURM_TRES_PER_TASK");
    return sched_env("SLURM_GPUS_PER_TASK") || (of_task && strstr(of_task, "gres/gpu"));
}

/* Set the slots from the job's GPUs. 1: set, 0: unknown, -1: error. */
static int gpus_of(struct alloc *a, struct ddp_err *err)
{
    const char *per_node = sched_env("SLURM_GPUS_PER_NODE");
    const char *total = sched_env("SLURM_GPUS"), *here = sched_env("SLURM_GPUS_ON_NODE");
    if (sched_slurm_gpus_per_task())
        return 0; /* tasks count */
    const char *name = per_node ? "SLURM_GPUS_PER_NODE" : "SLURM_GPUS_ON_NODE";
    const char *text = per_node ? per_node : here;
    if (text && strcmp(text, "0") == 0)
        return 0; /* none requested: tasks count */
    int n = text ? sched_gpus(name, text, err) : gpus_listed(&name, &text);
    if (n <= 0)
        return n;
    int all = !per_node && total ? sched_gpus("SLURM_GPUS", total, err) : 0;
    if (all < 0)
        return -1;
    if (all > 0 && (long)n * (long)a->nnodes != all)
        return err_set(
            err,
            "SLURM_GPUS=%s over %zu nodes, %d of them on this one: which nodes "
            "have the others is unknown; submit with --gpus-per-node, or give "
            "-H node:GPUS,...",
            SANITIZED(total), a->nnodes, n);
    set_all_slots(a, n, name, text);
    return 1;
}

/* --- the kinds of job --------------------------------------------------------------- */

static int read_set(const struct names *v, const char *list, struct alloc *a,
                    struct ddp_err *err)
{
    size_t first = a->nnodes;
    TRY(add_nodes(v->nodelist, list, a, err));
    return tasks_of(v, a, first, err);
}

static int read_step(struct alloc *a, struct ddp_err *err)
{
    static const struct names v = {"SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE",
                                   "SLURM_STEP_NUM_TASKS"};
    const char *tasks = sched_env("SLURM_STEP_NUM_TASKS");
    if (tasks && strtol(tasks, NULL, 10) > 1)
        return err_set(err,
                       "this step has %s tasks (SLURM_STEP_NUM_TASKS=%s), and ddprun in "
                       "each of them would start the whole job; start it in the batch "
                       "script, or in a step of one task (srun -n1)",
                       SANITIZED(tasks), SANITIZED(tasks));
    return add_nodes(v.nodelist, sched_env(v.nodelist), a, err);
}

/* The job runs on all components; GPUs differ between them and are found on the nodes. */
static int read_het(int size, struct alloc *a, struct ddp_err *err)
{
    for (int i = 0; i < size; i++) {
        struct names v;
        snprintf(v.nodelist, sizeof v.nodelist, "SLURM_JOB_NODELIST_HET_GROUP_%d", i);
        snprintf(v.tasks, sizeof v.tasks, "SLURM_TASKS_PER_NODE_HET_GROUP_%d", i);
        snprintf(v.ntasks, sizeof v.ntasks, "SLURM_NTASKS_HET_GROUP_%d", i);
        const char *list = sched_env(v.nodelist);
        if (!list)
            return err_set(err,
                           "SLURM_HET_SIZE=%d, but %s is not set; -H names the nodes",
                           size, v.nodelist);
        TRY(read_set(&v, list, a, err));
    }
    return 0;
}

/* "n1*4,n[2-3]  # comment": a host is listed, or counted, once per task. */
static int read_order(struct hostbook *book, const struct host_place *place, char *line,
                      struct ddp_err *err)
{
    const char *stop = place->text + strcspn(place->text, "#"), *end;
    for (const char *p = place->text, *next; p < stop; p = next + 1) {
        next = host_item(&p, stop, &end);
        if (p == end)
            continue;
        const char *star = memchr(p, '*', (size_t)(end - p));
        struct host_entry e;
        int times = 1;
        if (star && host_number(place, star + 1, end, "the number of tasks", 1, SLOTS_MAX,
                                &times, err) < 0)
            return -1;
        if (host_word(place, p, star ? star : end, &e, err) < 0)
            return -1;
        e.slots = times;
        TRY(hostbook_add(book, place, &e, err));
    }
    return 0;
}

/* With -m arbitrary a file gives the order of ranks, and rank 0's node need not be the
 * job's first. */
static int read_job(struct alloc *a, struct ddp_err *err)
{
    static const struct names v = {"SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE",
                                   "SLURM_NTASKS"};
    const char *order = sched_env("SLURM_DISTRIBUTION"),
               *file = sched_env("SLURM_HOSTFILE");
    if (file && (!order || strncmp(order, "arbitrary", 9) == 0))
        return sched_file("SLURM_HOSTFILE", file, read_order, a, err);
    return read_set(&v, job_nodelist(), a, err);
}

static int read_slurm(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    const char *het = sched_env("SLURM_HET_SIZE");
    int size = het ? atoi(het) : 1;
    a->scheduler_owned = true;
    if (in_step())
        return read_step(a, err) < 0 || gpus_of(a, err) < 0 ? -1 : 0;
    if (size > 1)
        return read_het(size, a, err);
    return read_job(a, err) < 0 || gpus_of(a, err) < 0 ? -1 : 0;
}

const struct alloc_source alloc_slurm = {
    .name = "slurm",
    .detect = detect,
    .read = read_slurm,
    .job_var = "SLURM_JOB_ID",
    .old_job_var = "SLURM_JOBID",
    .node_var = "SLURMD_NODENAME",
    .slots_hint = "--ntasks-per-node of the job",
    .loss_hint = "Slurm ends a job when a node fails, unless it was submitted with "
                 "--no-kill (sbatch --no-kill, salloc --no-kill)",
};
