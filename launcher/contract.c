/* launcher/contract.c - see contract.h
 *
 * Two tables: variables that ddprun sets, and variables of another launcher that it
 * removes. A row of the first has one of three kinds. IDENTITY is required for the job to
 * work: it replaces any value, even one of -x (with a warning). DEFAULT is set only if
 * the user has not set it. OPTION follows an option of ddprun: it replaces the
 * environment's value, but not one of -x.
 */
#include "launcher/contract.h"

#include "common/ambient_launcher.h"
#include "common/mem.h"
#include "launcher/envfwd.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From this size on a rank fetches its peers' addresses with one request instead of 3 per
 * peer (measured for N ranks: 3N^2 + 2N store requests, 4N with the API). */
#define MANY_RANKS 16

enum { VALUE_SIZE = 320 }; /* a host name and what is around it */

enum kind { IDENTITY, DEFAULT, OPTION };

/* Returns the value, possibly in `buf`, or NULL: not set for these facts. */
typedef const char *(*value_fn)(const struct rank_facts *f, char buf[VALUE_SIZE]);

/* As "%d", which would take a third of the time to make a rank's environment. */
static const char *decimal(int number, char buf[VALUE_SIZE])
{
    char *p = buf + VALUE_SIZE - 1;
    unsigned n = number < 0 ? 0U - (unsigned)number : (unsigned)number;
    *p = '\0';
    do
        *--p = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    if (number < 0)
        *--p = '-';
    return p;
}

#define NUMBER(name, expression) TEXT(name, decimal(expression, buf))
#define TEXT(name, expression)                                                \
    static const char *name(const struct rank_facts *f, char buf[VALUE_SIZE]) \
    {                                                                         \
        return expression;                                                    \
    }

NUMBER(rank, f->rank)
NUMBER(size, f->size)
/* a rank that sees only one device has it as device 0, as under torchrun */
NUMBER(device_rank, f->gpu ? 0 : f->local_rank)
NUMBER(local_rank, f->local_rank)
NUMBER(local_size, f->local_size)
NUMBER(node_rank, f->node_rank)
NUMBER(nnodes, f->nnodes)
NUMBER(cross_rank, f->cross_rank)
NUMBER(cross_size, f->cross_size)
NUMBER(restart_count, f->restart_count)
NUMBER(max_restarts, f->max_restarts)
NUMBER(ncpus, f->ncpus)
TEXT(master_addr, f->master_addr)
TEXT(master_port, f->master_port > 0 ? decimal(f->master_port, buf) : "(any free port)")
TEXT(hostname, f->hostname)
TEXT(job_id, f->job_id)
TEXT(error_file, f->error_file)
TEXT(kept_memory, f->kept_memory)
TEXT(nccl_ras, f->nccl_ras)
TEXT(interface, f->interface)
TEXT(gloo_interface, f->interface ? f->interface : f->gloo_interface)
TEXT(gpu, f->gpu)
TEXT(one, "1")
TEXT(columns, f->columns > 0 ? decimal(f->columns, buf) : NULL)
TEXT(role_name, "default")
TEXT(store_port, f->store_port > 0   ? decimal(f->store_port, buf)
                 : f->store_port < 0 ? "(chosen at start)"
                                     : NULL)

static const char *store_separate(const struct rank_facts *f, char buf[VALUE_SIZE])
{
    if (f->store_port <= 0)
        return store_port(f, buf);
    snprintf(buf, VALUE_SIZE, "%d@%s:%d", f->store_port, f->master_addr, f->master_port);
    return buf;
}

/* torch compares with this exact text */
TEXT(agent_store, f->store == STORE_RANK0 || f->store_port ? "False" : "True")
TEXT(pmix_nspace, f->pmix_nspace)
TEXT(pmix_rank, f->pmix_nspace ? rank(f, buf) : NULL)
TEXT(pmix_uri, f->pmix_uri)
TEXT(pmix_host, f->pmix_nspace ? f->hostname : NULL)
TEXT(pmix_security, f->pmix_nspace ? CONTRACT_PMIX_SECURITY : NULL)
TEXT(pmix_buffers, f->pmix_nspace ? CONTRACT_PMIX_BUFFERS : NULL)
TEXT(pmix_store, f->pmix_nspace ? CONTRACT_PMIX_STORE : NULL)
TEXT(pmix_version, f->pmix_nspace ? DDPRUN_PMIX_VERSION : NULL)
TEXT(no_schizo, f->pmix_nspace ? "^orte,slurm,flux,jsm,alps,moab" : NULL)
TEXT(one_if_crowded, f->crowded ? "1" : NULL)
TEXT(pmi_fd, f->pmi_fd > 0 ? decimal(f->pmi_fd, buf) : NULL)
TEXT(pmi_version, f->pmi_fd > 0 ? "1" : f->pmix_nspace ? "x" : NULL)
TEXT(pmi_spawned, f->pmi_fd > 0 && f->spawned ? "1" : NULL)
TEXT(one_if_many, f->size >= MANY_RANKS ? "1" : NULL)

/* The endpoint for a server of rank 0, after `scheme`. */
static const char *endpoint(const struct rank_facts *f, const char *scheme, char *buf)
{
    if (f->rank0_port <= 0)
        return f->rank0_port < 0 ? "(chosen at start)" : NULL;
    snprintf(buf, VALUE_SIZE, strchr(f->master_addr, ':') ? "%s[%s]:%d" : "%s%s:%d",
             scheme, f->master_addr, f->rank0_port);
    return buf;
}

TEXT(jax_coordinator, endpoint(f, "", buf))
/* If it is set, Open MPI 4 refuses connections to other jobs. */
TEXT(hnp_uri, f->spawned ? NULL : endpoint(f, "0.0;tcp://", buf))
TEXT(jax_device, f->gpu ? "0" : NULL)
TEXT(ompi_version, "4.1.4")
TEXT(node_list, f->node_list)
TEXT(tasks_per_node, f->tasks_per_node)
TEXT(tf_config, f->tf_config)
TEXT(endpoints, f->endpoints)

static const char *own_endpoint(const struct rank_facts *f, char buf[VALUE_SIZE])
{
    const char *at = f->endpoints;
    for (int r = 0; at && r < f->rank; r++)
        at += strcspn(at, ",") + 1;
    if (at)
        snprintf(buf, VALUE_SIZE, "%.*s", (int)strcspn(at, ","), at);
    return at ? buf : NULL;
}

TEXT(gloo, f->store != STORE_RANK0 ? "gloo" : NULL)
TEXT(hvd_addr, f->store == STORE_RANK0 ? NULL : f->kv_port ? "127.0.0.1" : f->master_addr)
TEXT(hvd_port, f->store == STORE_RANK0 ? NULL
               : f->kv_port            ? decimal(f->kv_port, buf)
               : f->store_port         ? store_port(f, buf)
                                       : master_port(f, buf))
TEXT(hvd_interface, f->interface                 ? f->interface
                    : f->nnodes == 1 && !f->grows ? "lo"
                                                  : f->gloo_interface)
TEXT(tracker_port,
     f->tracker_port > 0 ? decimal(f->tracker_port, buf) : "(chosen at start)")

static const struct row {
    const char *name;
    value_fn value;
    enum kind kind;
    unsigned names; /* enum rank_names, or-ed; 0: always set */
    const char *meaning;
} rows[] = {
    {"RANK", rank, IDENTITY, 0, "number of this rank, from 0"},
    {"WORLD_SIZE", size, IDENTITY, 0, "number of ranks"},
    {"LOCAL_RANK", device_rank, IDENTITY, 0,
     "number of this rank on its host, from 0; 0 with --virtual-local-rank"},
    {"LOCAL_WORLD_SIZE", local_size, IDENTITY, 0, "number of ranks on this host"},
    {"NODE_RANK", node_rank, IDENTITY, 0, "number of this host; 0 has rank 0"},
    {"GROUP_RANK", node_rank, IDENTITY, 0, "torchrun's name for NODE_RANK"},
    {"GROUP_WORLD_SIZE", nnodes, IDENTITY, 0, "number of hosts"},
    {"ROLE_NAME", role_name, IDENTITY, 0, "always 'default'"},
    {"ROLE_RANK", rank, IDENTITY, 0, "the same as RANK"},
    {"ROLE_WORLD_SIZE", size, IDENTITY, 0, "the same as WORLD_SIZE"},
    {"MASTER_ADDR", master_addr, IDENTITY, 0,
     "address of the host of rank 0; your own value if other hosts can reach it by that"},
    {"MASTER_PORT", master_port, IDENTITY, 0,
     "port of the store; if rank 0 serves it a free port"},
    {"DDPRUN_MASTER_PORT", master_port, IDENTITY, 0,
     "the same as MASTER_PORT, which a program may change"},
    {"TORCHELASTIC_RUN_ID", job_id, IDENTITY, 0, "name of this job"},
    {"TORCHELASTIC_RESTART_COUNT", restart_count, IDENTITY, 0,
     "how often the job was restarted"},
    {"TORCHELASTIC_MAX_RESTARTS", max_restarts, IDENTITY, 0, "value of --max-restarts"},
    {"TORCHELASTIC_USE_AGENT_STORE", agent_store, IDENTITY, 0,
     "True: the store runs already; False: rank 0 serves it, by --store rank0 or as the "
     "only rank"},
    {"DDPRUN_STORE_PORT", store_separate, IDENTITY, 0,
     "in a job of one rank, PORT@MASTER_ADDR:MASTER_PORT: where ddprun's store is, as "
     "MASTER_PORT is left to the rank"},
    {"TORCHELASTIC_ERROR_FILE", error_file, OPTION, 0,
     "where torch's @record writes the exception of this rank"},
    {"OMP_NUM_THREADS", ncpus, DEFAULT, 0, "the CPUs this rank was given"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", one, DEFAULT, 0,
     "1: a lost peer ends the rank instead of hanging it"},
    {"NCCL_RAS_ADDR", nccl_ras, DEFAULT, 0,
     "on a host with NVIDIA GPUs: where NCCL of its ranks answers hang reports"},
    {"GLOO_ENABLE_STORE_V2_API", one_if_many, DEFAULT, 0,
     "1 from 16 ranks on: peers' addresses in one request"},
    {"PYTHONUNBUFFERED", one, DEFAULT, 0, "1: lines appear when they are printed"},
    {"DDPRUN_COLUMNS", columns, OPTION, 0,
     "if output goes to a terminal: its columns without the tag"},
    {"DDPRUN_KEPT_MEMORY", kept_memory, OPTION, 0,
     "if the job may restart: a file in memory that the ranks of a host share, and find "
     "again in the next attempt"},
    {"CUDA_VISIBLE_DEVICES", gpu, OPTION, 0,
     "with --virtual-local-rank: the one GPU of this rank; else untouched"},
    {"GLOO_SOCKET_IFNAME", gloo_interface, OPTION, 0,
     "with --interface: that one; on several hosts, if a host's name resolves to "
     "127.0.1.1: its interface towards the master"},
    {"NCCL_SOCKET_IFNAME", interface, OPTION, 0, "with --interface: that one"},
    {"JAX_COORDINATOR_ADDRESS", jax_coordinator, OPTION, 0,
     "for jax.distributed.initialize(): a port of rank 0's host, reserved for it"},
    {"JAX_LOCAL_DEVICE_IDS", jax_device, OPTION, 0, "with --virtual-local-rank: 0"},
    {"HOROVOD_RANK", rank, IDENTITY, 0, "the same as RANK"},
    {"HOROVOD_SIZE", size, IDENTITY, 0, "the same as WORLD_SIZE"},
    {"HOROVOD_LOCAL_RANK", local_rank, IDENTITY, 0, "the same as LOCAL_RANK"},
    {"HOROVOD_LOCAL_SIZE", local_size, IDENTITY, 0, "the same as LOCAL_WORLD_SIZE"},
    {"HOROVOD_CROSS_RANK", cross_rank, IDENTITY, 0,
     "number of this host among those that have this LOCAL_RANK"},
    {"HOROVOD_CROSS_SIZE", cross_size, IDENTITY, 0, "number of those hosts"},
    {"HOROVOD_HOSTNAME", hostname, IDENTITY, 0, "name of this host in the host list"},
    {"HOROVOD_CONTROLLER", gloo, DEFAULT, 0, "gloo; not set with --store rank0"},
    {"HOROVOD_CPU_OPERATIONS", gloo, DEFAULT, 0, "the same"},
    {"HOROVOD_GLOO_RENDEZVOUS_ADDR", hvd_addr, IDENTITY, 0,
     "the same as MASTER_ADDR: the store serves Horovod, too; with --elastic horovod "
     "127.0.0.1"},
    {"HOROVOD_GLOO_RENDEZVOUS_PORT", hvd_port, IDENTITY, 0,
     "the same as MASTER_PORT; with --elastic horovod a port of the agent"},
    {"HOROVOD_GLOO_IFACE", hvd_interface, OPTION, 0,
     "lo on one host; else as GLOO_SOCKET_IFNAME"},
    {"PMIX_NAMESPACE", pmix_nspace, IDENTITY, 0, "PMIx namespace of this job"},
    {"PMIX_RANK", pmix_rank, IDENTITY, 0, "the same as RANK"},
    {"PMIX_SERVER_URI41", pmix_uri, IDENTITY, 0, "where the host's PMIx server listens"},
    {"PMIX_SERVER_URI4", pmix_uri, IDENTITY, 0, "the same, for PMIx 4.0"},
    {"PMIX_SERVER_URI3", pmix_uri, IDENTITY, 0, "the same, for PMIx 3"},
    {"PMIX_SERVER_URI21", pmix_uri, IDENTITY, 0, "the same, for PMIx 2.1"},
    {"PMIX_SERVER_URI2", pmix_uri, IDENTITY, 0, "the same, for PMIx 2.0"},
    {"PMIX_HOSTNAME", pmix_host, IDENTITY, 0, "name of this host in the host list"},
    {"PMIX_SECURITY_MODE", pmix_security, IDENTITY, 0, "authentication of ranks"},
    {"PMIX_BFROP_BUFFER_TYPE", pmix_buffers, IDENTITY, 0, "encoding of PMIx messages"},
    {"PMIX_GDS_MODULE", pmix_store, IDENTITY, 0, "storage of PMIx data in a rank"},
    {"PMIX_VERSION", pmix_version, IDENTITY, 0, "version of the server"},
    {"OMPI_MCA_schizo", no_schizo, DEFAULT, 0,
     "makes Open MPI 4 use PMIx instead of starting as a singleton"},
    {"OMPI_MCA_mpi_yield_when_idle", one_if_crowded, DEFAULT, 0,
     "1 if a host has more ranks than CPUs: waiting ranks yield the CPU"},
    {"PMI_FD", pmi_fd, IDENTITY, NAMES_PMI, "descriptor of PMI-1 and PMI-2, for MPICH"},
    {"PMI_SPAWNED", pmi_spawned, IDENTITY, NAMES_PMI,
     "1 in a job that MPI_Comm_spawn has started"},
    {"MPIR_CVAR_PMI_VERSION", pmi_version, DEFAULT, NAMES_PMI,
     "1, or x for PMIx: MPICH 5 does not choose if both are offered"},
    {"OMPI_COMM_WORLD_RANK", rank, IDENTITY, NAMES_OMPI, "the same as RANK"},
    {"OMPI_COMM_WORLD_SIZE", size, IDENTITY, NAMES_OMPI, "the same as WORLD_SIZE"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", local_rank, IDENTITY, NAMES_OMPI,
     "the same as LOCAL_RANK"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", local_size, IDENTITY, NAMES_OMPI,
     "the same as LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_NODE_RANK", local_rank, IDENTITY, NAMES_OMPI,
     "the same as LOCAL_RANK (Open MPI counts ranks of a node so)"},
    {"OMPI_VERSION", ompi_version, IDENTITY, NAMES_OMPI,
     "4.1.4: JAX takes ranks without it for Open MPI 5 and wants mpi4py"},
    {"OMPI_MCA_orte_hnp_uri", hnp_uri, IDENTITY, NAMES_OMPI,
     "by this JAX detects the job; Open MPI does not use it under PMIx"},
    {"SLURM_PROCID", rank, IDENTITY, NAMES_SLURM, "the same as RANK"},
    {"SLURM_LOCALID", local_rank, IDENTITY, NAMES_SLURM, "the same as LOCAL_RANK"},
    {"SLURM_NODEID", node_rank, IDENTITY, NAMES_SLURM, "the same as NODE_RANK"},
    {"SLURM_NTASKS", size, IDENTITY, NAMES_SLURM, "the same as WORLD_SIZE"},
    {"SLURM_NPROCS", size, IDENTITY, NAMES_SLURM, "the same as WORLD_SIZE"},
    {"SLURM_NNODES", nnodes, IDENTITY, NAMES_SLURM, "number of hosts"},
    {"SLURM_STEP_NUM_TASKS", size, IDENTITY, NAMES_SLURM,
     "the same as WORLD_SIZE, for TensorFlow's SlurmClusterResolver"},
    {"SLURM_STEP_NODELIST", node_list, IDENTITY, NAMES_SLURM,
     "the hosts, up to 1024, for the same"},
    {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node, IDENTITY, NAMES_SLURM,
     "ranks of each of them, for the same"},
    {"TF_CONFIG", tf_config, IDENTITY, NAMES_TF,
     "TensorFlow's cluster of workers, one per rank, with a port each"},
    {"DMLC_TRACKER_URI", master_addr, IDENTITY, NAMES_DMLC,
     "the same as MASTER_ADDR; XGBoost's tracker is rank 0's to start"},
    {"DMLC_TRACKER_PORT", tracker_port, IDENTITY, NAMES_DMLC,
     "a port of rank 0's host, by the name of the job"},
    {"DMLC_NUM_WORKER", size, IDENTITY, NAMES_DMLC, "the same as WORLD_SIZE"},
    {"DMLC_TASK_ID", rank, IDENTITY, NAMES_DMLC, "the same as RANK"},
    {"PADDLE_TRAINER_ID", rank, IDENTITY, NAMES_PADDLE, "the same as RANK"},
    {"PADDLE_TRAINERS_NUM", size, IDENTITY, NAMES_PADDLE, "the same as WORLD_SIZE"},
    {"PADDLE_RANK_IN_NODE", local_rank, IDENTITY, NAMES_PADDLE, "the same as LOCAL_RANK"},
    {"PADDLE_TRAINER_ENDPOINTS", endpoints, IDENTITY, NAMES_PADDLE,
     "a port of each rank, by the name of the job"},
    {"PADDLE_CURRENT_ENDPOINT", own_endpoint, IDENTITY, NAMES_PADDLE,
     "that of this rank"},
    {"FLAGS_selected_gpus", device_rank, DEFAULT, NAMES_PADDLE, "the same as LOCAL_RANK"},
    {"PMI_RANK", rank, IDENTITY, NAMES_PMI, "the same as RANK"},
    {"PMI_SIZE", size, IDENTITY, NAMES_PMI, "the same as WORLD_SIZE"},
    {"MPI_LOCALRANKID", local_rank, IDENTITY, NAMES_PMI, "the same as LOCAL_RANK"},
    {"MPI_LOCALNRANKS", local_size, IDENTITY, NAMES_PMI, "the same as LOCAL_WORLD_SIZE"},
};

/* Variables of another launcher around ddprun, and the harm they would do to a rank. '*'
 * at the end of a name matches any rest. A value given with -x stays. */
static const struct {
    const char *name;
    const char *harm;
} inherited[] = {
    {"PMIX_*", "the outer job's PMIx server, which does not know these ranks"},
    {"PMI_*", "an outer MPICH's descriptor or port, closed here"},
    {"PMI2_*", "likewise"},
    {"MPI_LOCAL*", "an outer MPICH's local rank"},
    {"HYDI_CONTROL_FD", "an outer MPICH's descriptor"},
    {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "the host an outer MPICH was started on"},
    {"OMPI_COMM_WORLD_*", "an outer mpirun's rank"},
    {"OMPI_UNIVERSE_SIZE", "an outer mpirun's world"},
    {"OMPI_APP_CTX_NUM_PROCS", "an outer mpirun's world"},
    {"OMPI_FIRST_RANKS", "an outer mpirun's world"},
    {"OMPI_NUM_APP_CTX", "an outer mpirun's world"},
    {"OMPI_COMMAND", "an outer mpirun's program"},
    {"OMPI_ARGV", "an outer mpirun's program"},
    {"OMPI_FILE_LOCATION", "an outer mpirun's session directory"},
    {"OMPI_MCA_ess", "tells Open MPI to join an outer launch"},
    {"OMPI_MCA_ess_*", "tells Open MPI to join an outer launch"},
    {"OMPI_MCA_orte_*", "addresses of an outer mpirun"},
    {"OMPI_MCA_pmix", "tells Open MPI to join an outer launch"},
    {"OMPI_MCA_initial_wdir", "an outer mpirun's directory"},
    {"ORTE_*", "an outer mpirun's daemon"},
    {"PRTE_LAUNCHED", "an outer prun"},
    {"MV2_COMM_WORLD_*", "an outer MVAPICH's rank"},
    {"MPIRUN_RANK", "an outer MVAPICH's rank"},
    {"MPIRUN_ID", "an outer MVAPICH's job"},
    {"SLURM_STEP_*", "the shape of an outer step, not of this job"},
    {"SLURM_STEPID", "an outer step"},
    {"SLURM_STEPMGR", "an outer step"},
    {"SLURM_SRUN_COMM_*", "the srun of an outer step"},
    {"SLURM_GTIDS", "the ranks of an outer step on this node"},
    {"SLURM_TASK_PID", "the process of an outer step"},
    {"SLURM_PROCID", "rank 0 of an outer (batch) step, for every rank"},
    {"SLURM_LOCALID", "likewise"},
    {"SLURM_NODEID", "likewise"},
    {"SLURM_NTASKS", "the size of an outer step"},
    {"SLURM_NPROCS", "the size of an outer step"},
    {"SLURM_NNODES", "the size of an outer step"},
    {"SLURM_NTASKS_PER_NODE", "the shape of an outer step"},
    {"SLURM_TASKS_PER_NODE", "the shape of an outer step"},
    {"SLURM_PMI*", "an outer step's PMI"},
    {"SLURM_MPI_TYPE", "tells an MPI to join an outer step"},
    {"FLUX_TASK_*", "an outer Flux task's rank"},
    {"PALS_RANKID", "an outer PALS launch's rank"},
    {"PALS_LOCAL_RANKID", "an outer PALS launch's rank"},
    {"ALPS_APP_PE", "an outer aprun's rank"},
    {"JSM_NAMESPACE_*", "an outer jsrun's rank"},
    {"TORCHELASTIC_*", "an outer torchrun's agent"},
    {"HOROVOD_GLOO_RENDEZVOUS_*", "an outer horovodrun's server"},
    {"DDPRUN_KEPT_MEMORY", "an outer ddprun's memory"},
    {"DDPRUN_STORE_PORT", "an outer ddprun's store"},
    {"HOROVOD_ELASTIC", "waits for an outer horovodrun's driver"},
};

/* May a table have this name? A filter by the first two bytes, which exclude most of an
 * environment: 256 ranks on a host make some 20,000 lookups. */
static bool may_be_known(const char *name)
{
    static unsigned char pairs[256][256 / 8];
    static bool filled;
    const unsigned char *n = (const unsigned char *)name;
    for (size_t i = 0; !filled && i < ARRAY_LEN(rows) + ARRAY_LEN(inherited); i++) {
        size_t k = i - ARRAY_LEN(rows);
        const char *p = i < ARRAY_LEN(rows) ? rows[i].name : inherited[k].name;
        const unsigned char a = (unsigned char)p[0], b = (unsigned char)p[1];
        pairs[a][b / 8] |= (unsigned char)(1 << b % 8);
    }
    filled = true;
    return n[0] && pairs[n[0]][n[1] / 8] >> n[1] % 8 & 1;
}

static bool is_inherited(const char *name, size_t len)
{
    for (size_t i = 0; may_be_known(name) && i < ARRAY_LEN(inherited); i++) {
        if (strv_env_match(inherited[i].name, name, len))
            return true;
    }
    return false;
}

/* What the tables say of a variable. */
struct contract_var {
    const struct row *row; /* NULL: none */
    size_t len;            /* of its name; 0: it is no variable */
    bool user, inherited;
};

/* Arguments of contract_apply(). */
struct apply {
    const struct rank_facts *facts;
    const struct contract_base *base;
    void (*note)(const struct env_note *n, void *arg);
    void *arg;
};

static void report_change(const struct apply *a, const char *name, enum env_origin origin,
                          const char *old, bool user)
{
    struct env_note n = {name, origin, old, user};
    if (a->note)
        a->note(&n, a->arg);
}

/* The value of the row for these facts, or NULL: not set. */
static const char *value_of(const struct row *row, const struct rank_facts *f,
                            char buf[VALUE_SIZE])
{
    if (row->names && !(row->names & f->rank_names))
        return NULL;
    return row->value(f, buf);
}

/* Does the present value `old` (NULL: none) take precedence over ours? */
static bool stays(const struct apply *a, const struct row *row, const char *old,
                  bool user)
{
    const struct rank_facts *f = a->facts;
    if (old && !user && row->value == ncpus && f->local_size > 1 &&
        strtol(old, NULL, 10) > f->ncpus && envfwd_of_chunk(a->base->vars->v, old))
        return false; /* PBS: the CPUs of all ranks of the node */
    return old && (row->kind == DEFAULT || (row->kind == OPTION && user));
}

static const struct row *find_row(const char *name, size_t len)
{
    for (size_t i = 0; may_be_known(name) && i < ARRAY_LEN(rows); i++) {
        if (strv_env_match(rows[i].name, name, len))
            return &rows[i];
    }
    return NULL;
}

/* Copy an entry unless a table replaces or removes it; report what was decided. Returns
 * whether it was copied. */
static bool copy_entry(const struct apply *a, const char *entry,
                       const struct contract_var *is, struct strv *env)
{
    char buf[VALUE_SIZE];
    if (is->len == 0)
        return false;
    const char *old = entry + is->len + 1;
    const char *value = is->row ? value_of(is->row, a->facts, buf) : NULL;
    if (value && !stays(a, is->row, old, is->user)) {
        if (strcmp(value, old) != 0)
            report_change(a, is->row->name, ENV_REPLACED, old, is->user);
        return false; /* set below, from the table */
    }
    if (!value && !is->user && is->inherited) {
        OWNED char *name = xstrndup(entry, is->len);
        report_change(a, name, ENV_REMOVED, old, false);
        return false;
    }
    if (value && strcmp(value, old) != 0)
        report_change(a, is->row->name, ENV_KEPT, old, is->user);
    strv_push(env, entry);
    return true;
}

void contract_base_init(struct contract_base *b, const struct strv *vars,
                        const struct strv *user_set)
{
    *b = (struct contract_base){.vars = vars, .is = xcalloc(vars->n + 1, sizeof *b->is)};
    for (size_t i = 0; i < vars->n; i++) {
        const char *entry = vars->v[i], *equals = strchr(entry, '=');
        b->nbytes += strlen(entry) + 1;
        if (!equals)
            continue;
        size_t len = (size_t)(equals - entry);
        b->is[i] =
            (struct contract_var){.row = find_row(entry, len),
                                  .len = len,
                                  .user = user_set && strv_has(user_set, entry, len),
                                  .inherited = is_inherited(entry, len)};
    }
}

void contract_base_finish(struct contract_base *b)
{
    free(b->is);
    *b = (struct contract_base){0};
}

void contract_apply(const struct rank_facts *facts, const struct contract_base *base,
                    struct strv *env, void (*note)(const struct env_note *n, void *arg),
                    void *arg)
{
    enum { USUAL = 64 }; /* bytes of a variable of ours */
    const struct apply a = {facts, base, note, arg};
    char buf[VALUE_SIZE];
    bool there[ARRAY_LEN(rows)] = {false};
    strv_reserve(env, base->vars->n + ARRAY_LEN(rows),
                 base->nbytes + ARRAY_LEN(rows) * USUAL);
    for (size_t i = 0; i < base->vars->n; i++) {
        const struct contract_var *is = &base->is[i];
        if (copy_entry(&a, base->vars->v[i], is, env) && is->row)
            there[is->row - rows] = true;
    }
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *value = there[i] ? NULL : value_of(&rows[i], facts, buf);
        if (value)
            strv_env_push(env, rows[i].name, value);
    }
}

void contract_each(const struct rank_facts *facts,
                   void (*row)(const char *name, const char *value, bool is_default,
                               void *arg),
                   void *arg)
{
    char buf[VALUE_SIZE];
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *value = value_of(&rows[i], facts, buf);
        if (value)
            row(rows[i].name, value, rows[i].kind == DEFAULT, arg);
    }
}

bool contract_knows(const char *entry)
{
    return find_row(entry, strcspn(entry, "=")) != NULL;
}

/* Who reads a variable: the first row that fits. */
static const char *reader_of(const char *name)
{
    static const struct {
        const char *pattern, *reader;
    } readers[] = {
        {"TORCH*", "PyTorch"},
        {"GLOO_*", "PyTorch"},
        {"GROUP_*", "PyTorch"},
        {"ROLE_*", "PyTorch"},
        {"MASTER_*", "PyTorch, DeepSpeed, Lightning, accelerate"},
        {"NCCL_*", "NCCL"},
        {"CUDA_*", "CUDA"},
        {"OMP_*", "OpenMP, PyTorch, NumPy"},
        {"PYTHON*", "Python"},
        {"DDPRUN_STORE_PORT", "include/ddprun/store.h"},
        {"DDPRUN_*", "ddp-train"},
        {"HOROVOD_*", "Horovod"},
        {"JAX_*", "JAX"},
        {"PMIX_*", "Open MPI, MPICH"},
        {"OMPI_VERSION", "JAX"},
        {"OMPI_MCA_orte_hnp_uri", "JAX"},
        {"OMPI_MCA_*", "Open MPI"},
        {"OMPI_COMM_WORLD_*", "JAX, DeepSpeed, scripts for mpirun"},
        {"SLURM_STEP_*", "TensorFlow"},
        {"SLURM_*", "scripts for srun"},
        {"PMI_*", "MPICH, Intel MPI"},
        {"MPIR_*", "MPICH"},
        {"MPI_LOCAL*", "Intel MPI, scripts for mpiexec"},
        {"TF_CONFIG", "TensorFlow"},
        {"DMLC_*", "XGBoost"},
        {"PADDLE_*", "PaddlePaddle"},
        {"FLAGS_*", "PaddlePaddle"},
        {"*", "PyTorch and most others"},
    };
    size_t i = 0;
    while (!strv_env_match(readers[i].pattern, name, strlen(name)))
        i++;
    return readers[i].reader;
}

void contract_print(FILE *out)
{
    static const struct {
        unsigned names;
        const char *title;
    } groups[] = {
        {0, "every rank:"},
        {NAMES_OMPI, "with --rank-names ompi (default):"},
        {NAMES_SLURM, "with --rank-names slurm (default):"},
        {NAMES_PMI, "with --rank-names pmi (default):"},
        {NAMES_TF, "with --rank-names tf:"},
        {NAMES_DMLC, "with --rank-names dmlc:"},
        {NAMES_PADDLE, "with --rank-names paddle:"},
    };
    static const char *const kinds[] = {[IDENTITY] = "",
                                        [DEFAULT] = " [unless set]",
                                        [OPTION] = " [unless given with -x]"};
    for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
        fprintf(out, "%s\n", groups[g].title);
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            if (rows[i].names == groups[g].names)
                fprintf(out, "  %-32s %s%s {%s}\n", rows[i].name, rows[i].meaning,
                        kinds[rows[i].kind], reader_of(rows[i].name));
        }
    }
    fputs("removed if set by an outer launcher:\n", out);
    for (size_t i = 0; i < ARRAY_LEN(inherited); i++)
        fprintf(out, "  %-32s %s\n", inherited[i].name, inherited[i].harm);
    fputs(
        "an instance of ddprun, or ddp-train, under another launcher takes its rank from "
        "the first of:\n",
        out);
    ambient_launcher_print(out);
    fputs("not carried to other hosts, unless given with -x:\n", out);
    envfwd_print(out);
}
