/* launcher/peer/ambient_job.c - see ambient_job.h
 *
 * common/ambient_launcher.h's table gives rank and size; the table here adds what else
 * ddprun needs, above all an id of the start.
 */
#include "launcher/peer/ambient_job.h"

#include "common/ambient_launcher.h"
#include "common/err.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "common/number.h"
#include "launcher/alloc/sagemaker.h"
#include "launcher/alloc/sched.h"
#include "launcher/link/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each launcher by its rank variable. `id`: variables whose values together identify one
 * start; unset ones are skipped, but one must be set. `node`: the variable that names the
 * launcher's node daemon, of which one machine may have several (flux start --test-size,
 * slurmd -N). */
static const struct launcher_row {
    const char *rank;
    const char *id[4];
    const char *secret, *node;
} rows[] = {
    /* 128 random bits that mpirun makes for each job and gives to its ranks only */
    {"OMPI_COMM_WORLD_RANK",
     {"PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"},
     "OMPI_MCA_orte_precondition_transports",
     NULL},
    {"JSM_NAMESPACE_RANK", {"LSB_JOBID", "LS_JOBPID", "JSM_JSRUN_PID"}, NULL, NULL},
    {"MV2_COMM_WORLD_RANK", {"MPIRUN_ID", "MPIRUN_HOST"}, NULL, NULL},
    {"PMI_RANK", {NULL}, NULL, NULL},
    {"PALS_RANKID", {"PALS_APID", "PBS_JOBID"}, NULL, NULL},
    {"FLUX_TASK_RANK", {"FLUX_JOB_ID", "FLUX_KVS_NAMESPACE"}, NULL, "FLUX_URI"},
    {"SLURM_PROCID",
     {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
     NULL,
     "SLURMD_NODENAME"},
};

static const struct launcher_row *row_of(const struct ambient_launcher *s)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].rank, s->rank) == 0)
            return &rows[i];
    }
    return NULL;
}

static void set_job_id(const struct launcher_row *row, struct ambient_job *o)
{
    o->id = xstrdup("");
    for (size_t i = 0; i < ARRAY_LEN(row->id) && row->id[i]; i++) {
        const char *value = getenv(row->id[i]);
        if (value)
            xappendf(&o->id, "%s=%s ", row->id[i], value);
    }
    o->secret = row->secret ? getenv(row->secret) : NULL;
    o->node = row->node ? getenv(row->node) : NULL;
}

/* --- instances on this machine ------------------------------------------------------ */

static int read_int(const char *name, int *value, struct ddp_err *err)
{
    const char *text = getenv(name);
    if (!text || !number_whole(text, 0, 1 << 20, value))
        return err_set(err, "%s is '%s', which is no number", name, text ? text : "");
    return 0;
}

/* srun gives the counts of all nodes, and their names. */
static int slurm_local(struct ambient_job *o, struct ddp_err *err)
{
    int nodes, node;
    const char *tasks = getenv("SLURM_STEP_TASKS_PER_NODE"),
               *list = getenv("SLURM_STEP_NODELIST");
    if (read_int("SLURM_STEP_NUM_NODES", &nodes, err) < 0 ||
        read_int("SLURM_NODEID", &node, err) < 0)
        return -1;
    if (node >= nodes || !tasks || !list)
        return err_set(err,
                       "SLURM_NODEID=%d of SLURM_STEP_NUM_NODES=%d: half a step's "
                       "variables",
                       node, nodes);
    OWNED int *counts = xcalloc((size_t)nodes, sizeof *counts);
    TRY(sched_counts("SLURM_STEP_TASKS_PER_NODE", tasks, counts, (size_t)nodes, err));
    o->local_size = counts[node];
    return o->size == nodes ? hostlist_expand(list, &o->hosts, err) : 0;
}

static int even_local(const char *nodes_var, struct ambient_job *o, struct ddp_err *err)
{
    int nodes;
    if (read_int(nodes_var, &nodes, err) < 0)
        return -1;
    if (nodes < 1 || o->size % nodes != 0)
        return err_set(
            err,
            "%s has started %d instances of ddprun on %d nodes (%s=%d): the number "
            "on this one is unknown; start one per node",
            o->by, o->size, nodes, o->size_var, o->size);
    o->local_size = o->size / nodes;
    return 0;
}

static int find_local(const struct ambient_launcher *s, struct ambient_job *o,
                      struct ddp_err *err)
{
    if (s->local_size)
        return read_int(s->local_size, &o->local_size, err);
    if (strcmp(s->rank, "SLURM_PROCID") == 0)
        return slurm_local(o, err);
    return even_local("FLUX_JOB_NNODES", o, err);
}

/* --- one function per kind of start ------------------------------------------------- */

static int by_hand(const struct opts *opts, struct ambient_job *o, struct ddp_err *err)
{
    if (opts->nnodes == 0)
        return err_set(err, "--node-rank %d needs --nnodes", opts->node_rank);
    if (opts->node_rank >= opts->nnodes)
        return err_set(err, "--node-rank %d of --nnodes %d: they count from 0",
                       opts->node_rank, opts->nnodes);
    if (opts->hostfile || opts->alloc)
        return err_set(err,
                       "--node-rank means that ddprun is started on each node: "
                       "leave out %s",
                       opts->hostfile ? "--hostfile" : "--alloc");
    if (opts->nnodes == 1)
        return 0;
    *o = (struct ambient_job){.by = "--node-rank",
                              .size_var = "--nnodes",
                              .by_hand = true,
                              .rank = opts->node_rank,
                              .size = opts->nnodes,
                              .local_size = 1,
                              .least = opts->min_nnodes};
    o->id = xasprintf("by hand %s %d", opts->master_addr ? opts->master_addr : "",
                      opts->master_port);
    return 0;
}

static int by_sagemaker(struct ambient_job *o, struct ddp_err *err)
{
    int rank;
    if (sagemaker_hosts(&o->hosts, &rank, err) < 0)
        return -1;
    if (o->hosts.n < 2)
        return 0;
    o->by = "SageMaker";
    o->size_var = "hosts";
    o->apart = true;
    o->rank = rank;
    o->size = (int)o->hosts.n;
    o->local_size = 1;
    o->id = xstrdup("sagemaker");
    for (size_t i = 0; i < o->hosts.n; i++)
        xappendf(&o->id, " %s", o->hosts.v[i]);
    return 0;
}

static int refuse(const struct ambient_job *o, const char *instead, struct ddp_err *err)
{
    return err_set(err,
                   "%s has started %d instances of ddprun (%s=%d), and each would run "
                   "as a job of its own: %s; --alloc local if that is meant",
                   o->by, o->size, o->size_var, o->size, instead);
}

static int by_starter(const struct ambient_launcher *s, const struct opts *opts,
                      struct ambient_job *o, struct ddp_err *err)
{
    const struct launcher_row *row = row_of(s);
    o->by = s->name;
    o->size_var = s->size;
    if (ambient_launcher_place(s, ambient_launcher_env, &o->rank, &o->size,
                               &o->local_rank, err) < 0)
        return err_prefix(err, "%s has started this ddprun", s->name);
    if (!row)
        return refuse(o, "start it once, or with the number of ranks (-np)", err);
    if (opts->hosts || opts->hostfile) {
        char instead[64];
        snprintf(instead, sizeof instead, "start it once, or without %s",
                 opts->hosts ? opts_hosts_by(opts) : "--hostfile");
        return refuse(o, instead, err);
    }
    if (o->local_rank < 0 || o->size >= NODES_MAX)
        return refuse(o, "start it once", err);
    set_job_id(row, o);
    if (!o->id[0] && strcmp(s->rank, "PMI_RANK") != 0)
        return refuse(o, "no variable identifies their common start", err);
    if (find_local(s, o, err) < 0)
        return -1;
    if (o->local_rank >= o->local_size)
        return err_set(err, "%s=%d, but %d instances are on this node", s->local_rank,
                       o->local_rank, o->local_size);
    return 0;
}

/* Inside a rank of ddprun or torchrun, a launch with its own -np, -H or --hostfile is a
 * job of its own. RANK alone may be exported by the user. */
static bool nested(const struct opts *opts, bool *meant)
{
    *meant = opts->np > 0 || opts->hosts || opts->hostfile;
    return getenv("TORCHELASTIC_RUN_ID") && getenv("RANK") && getenv("WORLD_SIZE");
}

static bool is_set(const struct ambient_launcher *s)
{
    const char *size = getenv(s->size);
    return (!s->needs || getenv(s->needs)) && getenv(s->rank) && size &&
           strcmp(size, "1") != 0;
}

/* On the job's first node, too, pbsdsh starts instances without $PBS_NODEFILE. */
static int by_pbsdsh(const struct opts *opts, struct ddp_err *err)
{
    const char *task = ambient_launcher_pbs_task(ambient_launcher_env);
    if (!task || opts->hosts || opts->hostfile)
        return 0;
    return err_set(
        err,
        "PBS_TASKNUM=%s: this is not the job's first process; if pbsdsh has "
        "started several instances of ddprun, each would run as a job of its own: "
        "start it once, from the job script; --alloc %s if it is the only one",
        task, getenv("PBS_NODEFILE") ? "pbs" : "local");
}

static int find(const struct opts *opts, struct ambient_job *o, struct ddp_err *err)
{
    bool meant, inside = nested(opts, &meant);
    if (opts->node_rank >= 0)
        return by_hand(opts, o, err);
    /* --alloc, or a nested launch: a job of its own */
    if (opts->alloc || (inside && meant))
        return 0;
    for (size_t i = 0; i < ambient_launchers_len; i++) {
        bool rank_row = strcmp(ambient_launchers[i].rank, "RANK") == 0;
        if (is_set(&ambient_launchers[i]) && (!rank_row || inside))
            return by_starter(&ambient_launchers[i], opts, o, err);
    }
    if (by_pbsdsh(opts, err) < 0)
        return -1;
    if (sagemaker_here() && !opts->hosts && !opts->hostfile)
        return by_sagemaker(o, err);
    return 0;
}

int ambient_job_find(const struct opts *opts, struct ambient_job *o, struct ddp_err *err)
{
    *o = (struct ambient_job){0};
    int rc = find(opts, o, err);
    o->least = o->least > 0 ? o->least : o->size;
    return rc;
}

void ambient_job_finish(struct ambient_job *o)
{
    free(o->id);
    strv_finish(&o->hosts);
    *o = (struct ambient_job){0};
}
