/* launcher/cli/foreign.c - see foreign.h */
#include "launcher/cli/foreign.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/cli/spelling.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEBUGGER \
    "start the debugger as the program: ddprun ... gdb -ex run --args PROGRAM"
#define ENDS_THE_JOB "a failed rank ends the job; --max-restarts N starts it again"
#define LEAVE_IT_OUT "leave it out"
#define NO_TOOL      "start the tool as the program: ddprun ... TOOL PROGRAM"
#define SAVES_ITSELF "the program has to save its checkpoints itself"
#define A_JOB        "ask salloc or sbatch for it, or use --script slurm"
#define IN_A_SCRIPT  "call it in a script that starts the program"

/* mpirun of Open MPI 4.1 and 5.0 */
static const struct foreign open_mpi[] = {
    {"c", 1, FOREIGN_OURS, "np"},
    {"mca omca gmca", 2, FOREIGN_VARIABLE, "OMPI_MCA_"},
    {"pmixmca pmca gpmixmca", 2, FOREIGN_VARIABLE, "PMIX_MCA_"},
    {"prtemca", 2, FOREIGN_IGNORED},
    {"allow-run-as-root noprefix no-oversubscribe nooversubscribe q quiet", 0,
     FOREIGN_IGNORED},
    {"report-bindings display-map display-devel-map display-diffable-map "
     "display-allocation display-devel-allocation display-topo",
     0, FOREIGN_IGNORED},
    {"d debug-devel debug-daemons debug-daemons-file leave-session-attached "
     "hetero-nodes show-progress output-proctable use-regexp novm do-not-resolve "
     "enable-instant-on-support fwd-mpirun-port report-child-jobs-separately "
     "disable-recovery report-state-on-timeout get-stack-traces",
     0, FOREIGN_IGNORED},
    {"display personality runtime-options rank-by report-events gpu-support "
     "stream-buffering spawn-timeout exec-agent forward-signals",
     1, FOREIGN_IGNORED},
    {"cf cartofile report-pid report-uri max-vm-size memory-allocation-kinds", 1,
     FOREIGN_IGNORED},
    {"do-not-launch", 0, FOREIGN_OURS, "dry-run"},
    {"default-hostfile", 1, FOREIGN_OURS, "hostfile"},
    {"launch-agent", 1, FOREIGN_OURS, "agent"},
    {"pernode", 0, FOREIGN_OURS, "nproc-per-node", "1"},
    {"bynode", 0, FOREIGN_OURS, "map-by", "node"},
    {"byslot bycore", 0, FOREIGN_OURS, "map-by", "slot"},
    {"bind-to-core", 0, FOREIGN_OURS, "bind-to", "core"},
    {"bind-to-socket", 0, FOREIGN_OURS, "bind-to", "socket"},
    {"bind-to-none", 0, FOREIGN_OURS, "bind-to", "none"},
    {"cpus-per-proc cpus-per-rank", 1, FOREIGN_IGNORED},
    {"npersocket ppr", 1, FOREIGN_REFUSED, "use --map-by ppr:N:node"},
    {"prefix", 1, FOREIGN_REFUSED, "--agent names ddprun-agent on the other hosts"},
    {"rankfile rf", 1, FOREIGN_REFUSED,
     "list the hosts in that order, with slots, and use --map-by"},
    {"output", 1, FOREIGN_REFUSED,
     "use --tag-output, --timestamp-output or --output-filename"},
    {"merge-stderr-to-stdout", 0, FOREIGN_REFUSED, "add 2>&1 after the command"},
    {"nolocal", 0, FOREIGN_REFUSED,
     "use -H ^HOST, or leave this host out of the hostfile"},
    {"use-hwthread-cpus", 0, FOREIGN_REFUSED, "use --bind-to hwthread"},
    {"cpu-set cpu-list", 1, FOREIGN_REFUSED, "run ddprun under taskset"},
    {"tune am", 1, FOREIGN_REFUSED, "use -x OMPI_MCA_NAME=VALUE"},
    {"path", 1, FOREIGN_REFUSED, "use -x PATH=..."},
    {"s preload-binary set-cwd-to-session-dir index-argv-by-rank", 0, FOREIGN_REFUSED,
     "the program must be on every host, as --preflight checks"},
    {"preload-files", 1, FOREIGN_REFUSED, "copy them to every host"},
    {"continuous enable-recovery", 0, FOREIGN_REFUSED, ENDS_THE_JOB},
    {"with-ft", 1, FOREIGN_REFUSED, ENDS_THE_JOB},
    {"xml", 0, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"xml-file ompi-server hnp", 1, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"dvm", 0, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"xterm", 1, FOREIGN_REFUSED, "use --output-filename, and tail -f"},
    {"debug tv", 0, FOREIGN_REFUSED, NO_DEBUGGER},
    {"debugger", 1, FOREIGN_REFUSED, NO_DEBUGGER},
    {NULL}};

/* mpiexec of MPICH 3 to 5, and of Intel MPI where it differs */
static const struct foreign hydra[] = {
    {"env genv", 2, FOREIGN_VARIABLE, ""},
    {"envall genvall disable-hostname-propagation print-all-exitcodes print-rank-map "
     "enable-x disable-x profile pmi-port silent-abort rr enable-auto-cleanup "
     "enable-hostname-propagation pmi-aggregate pmi-noaggregate noconf ordered-output "
     "cleanup",
     0, FOREIGN_IGNORED},
    {"envlist genvlist rmk topolib demux usize localhost membind tmpdir soft arch "
     "pmi-connect branch-count memory-alloc-kinds use-app-topology",
     1, FOREIGN_IGNORED},
    {"prepend-rank l", 0, FOREIGN_OURS, "tag-output", "on"},
    {"perhost grr", 1, FOREIGN_OURS, "nproc-per-node"},
    {"machine", 1, FOREIGN_OURS, "hostfile"},
    {"machines machinelist hosts-group", 1, FOREIGN_OURS, "hosts"},
    {"bootstrap launcher", 1, FOREIGN_OURS, "start",
     "ssh=ssh slurm=srun sge=qrsh lsf=blaunch pbs=tmrsh"},
    {"bootstrap-exec launcher-exec", 1, FOREIGN_OURS, "ssh"},
    {"bootstrap-exec-args", 1, FOREIGN_REFUSED, "use --ssh 'ssh ARGUMENTS'"},
    {"gpus-per-proc g", 1, FOREIGN_OURS, "virtual-local-rank", "1= auto="},
    {"gpu-subdevs-per-proc", 1, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"envnone genvnone", 0, FOREIGN_REFUSED, "run 'env -i ddprun ...'"},
    {"envexcl genvexcl", 1, FOREIGN_REFUSED, "run 'env -u NAME ddprun ...'"},
    {"info", 0, FOREIGN_REFUSED, "use --version"},
    {"skip-launch-node", 0, FOREIGN_REFUSED,
     "use -H ^HOST, or leave this host out of the hostfile"},
    {"order-nodes rankmap", 1, FOREIGN_REFUSED, "list the hosts in that order"},
    {"binding", 1, FOREIGN_REFUSED, "use --bind-to"},
    {"prepend-pattern", 1, FOREIGN_REFUSED, "use --tag-output"},
    {"outfile-pattern errfile-pattern outfile errfile", 1, FOREIGN_REFUSED,
     "use --output-filename"},
    {"nameserver", 1, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"gdb trace check-mpi", 0, FOREIGN_REFUSED, NO_DEBUGGER},
    {"gdba", 1, FOREIGN_REFUSED, NO_DEBUGGER},
    {"aps mps trace-imbalance trace-pt2pt trace-collectives", 0, FOREIGN_REFUSED,
     NO_TOOL},
    {"gtool gtoolfile", 1, FOREIGN_REFUSED, NO_TOOL},
    {"ckpointlib ckpoint-prefix ckpoint-interval ckpoint-num", 1, FOREIGN_REFUSED,
     SAVES_ITSELF},
    {"ilp64", 0, FOREIGN_REFUSED, "use -x LD_PRELOAD=libmpi_ilp64.so"},
    {"umask", 1, FOREIGN_REFUSED, "set it in a script that starts the program"},
    {"disable-auto-cleanup", 0, FOREIGN_REFUSED, "a failed rank always ends the job"},
    {NULL}};

/* PyTorch 2.15, and --use-env of torch.distributed.launch */
static const struct foreign torchrun[] = {
    {"standalone use-env", 0, FOREIGN_IGNORED},
    {"rdzv-backend rdzv-id rdzv-conf monitor-interval start-method role tee t redirects "
     "r signals-to-handle event-log-handler log-line-prefix-template",
     1, FOREIGN_IGNORED},
    {"log-dir", 1, FOREIGN_OURS, "output-filename"},
    {"shutdown-timeout", 1, FOREIGN_OURS, "grace"},
    {"numa-binding", 1, FOREIGN_OURS, "bind-to",
     "node=numa socket=socket exclusive=core core-complex=numa"},
    {"local-addr", 1, FOREIGN_REFUSED, "use --interface NAME or --master-addr ADDRESS"},
    {"local-ranks-filter", 1, FOREIGN_OURS, "output-from"},
    {"duplicate-stdout-filters duplicate-stderr-filters", 1, FOREIGN_REFUSED,
     "use --output-from RANKS"},
    {"run-path", 0, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"logs-specs", 1, FOREIGN_REFUSED, "use --output-filename"},
    {"print-completion", 1, FOREIGN_REFUSED, "ddprun's completion is installed with it"},
    {NULL}};

/* Horovod 0.28 */
static const struct foreign horovodrun[] = {
    {"num-proc", 1, FOREIGN_OURS, "np"},
    {"network-interfaces", 1, FOREIGN_OURS, "interface"},
    {"prefix-output-with-timestamp prefix-timestamp", 0, FOREIGN_OURS,
     "timestamp-output"},
    {"gloo disable-cache tcp", 0, FOREIGN_IGNORED},
    {"cycle-time-ms", 1, FOREIGN_VARIABLE, "HOROVOD_CYCLE_TIME"},
    {"cache-capacity autotune-warmup-samples autotune-steps-per-sample "
     "autotune-bayes-opt-max-samples autotune-gaussian-process-noise num-nccl-streams "
     "thread-affinity gloo-timeout-seconds log-level",
     1, FOREIGN_VARIABLE, "HOROVOD_*"},
    {"timeline-mark-cycles autotune hierarchical-allreduce hierarchical-allgather "
     "torus-allreduce mpi-threads-disable",
     0, FOREIGN_VARIABLE, "HOROVOD_*", "1"},
    {"timeline-filename", 1, FOREIGN_VARIABLE, "HOROVOD_TIMELINE"},
    {"autotune-log-file", 1, FOREIGN_VARIABLE, "HOROVOD_AUTOTUNE_LOG"},
    {"no-hierarchical-allreduce", 0, FOREIGN_VARIABLE, "HOROVOD_HIERARCHICAL_ALLREDUCE",
     "0"},
    {"no-hierarchical-allgather", 0, FOREIGN_VARIABLE, "HOROVOD_HIERARCHICAL_ALLGATHER",
     "0"},
    {"no-torus-allreduce", 0, FOREIGN_VARIABLE, "HOROVOD_TORUS_ALLREDUCE", "0"},
    {"no-stall-check", 0, FOREIGN_VARIABLE, "HOROVOD_STALL_CHECK_DISABLE", "1"},
    {"stall-check-warning-time-seconds", 1, FOREIGN_VARIABLE,
     "HOROVOD_STALL_CHECK_TIME_SECONDS"},
    {"stall-check-shutdown-time-seconds", 1, FOREIGN_VARIABLE,
     "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"},
    {"log-without-timestamp log-hide-timestamp", 0, FOREIGN_VARIABLE,
     "HOROVOD_LOG_HIDE_TIME", "1"},
    {"mpi", 0, FOREIGN_VARIABLE, "HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS", "mpi"},
    {"v", 0, FOREIGN_OURS, "version"},
    {"check-build cb", 0, FOREIGN_REFUSED,
     "use python -c 'import horovod.torch as h; print(h.gloo_built(), h.mpi_built())'"},
    {"fusion-threshold-mb", 1, FOREIGN_VARIABLE, "HOROVOD_FUSION_THRESHOLD", "MiB"},
    {"p ssh-port", 1, FOREIGN_REFUSED,
     "use --ssh 'ssh -p PORT', or port=PORT in a hostfile"},
    {"i ssh-identity-file", 1, FOREIGN_REFUSED, "use --ssh 'ssh -i FILE'"},
    {"min-num-proc", 1, FOREIGN_OURS, "min-np"},
    {"max-num-proc", 1, FOREIGN_OURS, "max-np"},
    {"slots-per-host slots", 1, FOREIGN_OURS, "nproc-per-node"},
    {"elastic-timeout", 1, FOREIGN_OURS, "node-wait"},
    {"reset-limit", 1, FOREIGN_OURS, "max-restarts"},
    {"blacklist-cooldown-range", 2, FOREIGN_IGNORED},
    {"mpi-args binding-args", 1, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"config-file", 1, FOREIGN_REFUSED, "give its values as options"},
    {"jsrun", 0, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {NULL}};

/* accelerate 1.15; its scripts read these variables */
static const struct foreign accelerate[] = {
    {"num-processes", 1, FOREIGN_OURS, "np"},
    {"num-machines", 1, FOREIGN_OURS, "nnodes"},
    {"machine-rank", 1, FOREIGN_OURS, "node-rank"},
    {"main-process-ip", 1, FOREIGN_OURS, "master-addr"},
    {"main-process-port", 1, FOREIGN_OURS, "master-port"},
    {"log-dir", 1, FOREIGN_OURS, "output-filename"},
    {"mpirun-hostfile deepspeed-hostfile", 1, FOREIGN_OURS, "hostfile"},
    {"deepspeed-inclusion-filter", 1, FOREIGN_OURS, "include"},
    {"deepspeed-exclusion-filter", 1, FOREIGN_OURS, "exclude"},
    {"multi-gpu same-network enable-cpu-affinity quiet q downcast-bf16", 0,
     FOREIGN_IGNORED},
    {"rdzv-backend rdzv-conf tee t role monitor-interval main-training-function "
     "deepspeed-multinode-launcher",
     1, FOREIGN_IGNORED},
    {"num-cpu-threads-per-process", 1, FOREIGN_VARIABLE, "OMP_NUM_THREADS"},
    {"cpu", 0, FOREIGN_VARIABLE, "ACCELERATE_USE_CPU", "true"},
    {"debug", 0, FOREIGN_VARIABLE, "ACCELERATE_DEBUG_MODE", "true"},
    {"use-deepspeed use-fsdp use-parallelism-config use-megatron-lm", 0, FOREIGN_VARIABLE,
     "ACCELERATE_*", "true"},
    {"dynamo-use-fullgraph dynamo-use-dynamic dynamo-use-regional-compilation "
     "fp8-use-autocast-during-eval",
     0, FOREIGN_VARIABLE, "ACCELERATE_*", "True"},
    {"mixed-precision dynamo-backend dynamo-mode gradient-accumulation-steps "
     "gradient-clipping deepspeed-config-file deepspeed-moe-layer-cls-names",
     1, FOREIGN_VARIABLE, "ACCELERATE_*"},
    {"zero-stage offload-optimizer-device offload-param-device "
     "offload-optimizer-nvme-path offload-param-nvme-path zero3-save-16bit-model",
     1, FOREIGN_VARIABLE, "ACCELERATE_DEEPSPEED_*"},
    {"zero3-init-flag", 1, FOREIGN_VARIABLE, "ACCELERATE_DEEPSPEED_ZERO3_INIT"},
    {"fsdp-transformer-layer-cls-to-wrap", 1, FOREIGN_VARIABLE,
     "FSDP_TRANSFORMER_CLS_TO_WRAP"},
    {"config-file", 1, FOREIGN_REFUSED, "give its values as options"},
    {"gpu-ids", 1, FOREIGN_REFUSED, FOREIGN_GPUS},
    {"tpu tpu-use-sudo tpu-cluster no-tpu-cluster", 0, FOREIGN_REFUSED,
     "TPUs are not supported"},
    {"vm env aws-access-key-id aws-secret-access-key", 1, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {"fp8-override-linear-precision", 1, FOREIGN_REFUSED, "set it in the script"},
    {"fp8-*", 1, FOREIGN_VARIABLE, "ACCELERATE_*"},
    {"fsdp-* megatron-lm-* parallelism-config-*", 1, FOREIGN_VARIABLE, "*"},
    {NULL}};

/* DeepSpeed 0.19 */
static const struct foreign deepspeed[] = {
    {"H hostfile", 1, FOREIGN_OURS, "hostfile"},
    {"i", 1, FOREIGN_OURS, "include"},
    {"e", 1, FOREIGN_OURS, "exclude"},
    {"num-nodes", 1, FOREIGN_OURS, "nnodes"},
    {"num-gpus num-accelerators", 1, FOREIGN_OURS, "nproc-per-node"},
    {"enable-each-rank-log", 1, FOREIGN_OURS, "output-filename"},
    {"bind-cores-to-rank", 0, FOREIGN_OURS, "bind-to", "core"},
    {"no-local-rank", 0, FOREIGN_VARIABLE, "DDPRUN_LOCAL_RANK_ARG", "0"},
    {"no-ssh no-ssh-check force-multi save-pid quiet q", 0, FOREIGN_IGNORED},
    {"launcher log-level", 1, FOREIGN_IGNORED},
    {"launcher-args", 1, FOREIGN_REFUSED, "use options of ddprun, as -x and --map-by"},
    {"bind-core-list", 1, FOREIGN_REFUSED, "run ddprun under taskset"},
    {"ssh-port", 1, FOREIGN_REFUSED,
     "use --ssh 'ssh -p PORT', or port=PORT in a hostfile"},
    {"autotuning", 1, FOREIGN_REFUSED, "run 'deepspeed --autotuning' itself"},
    {"elastic-training", 0, FOREIGN_REFUSED, "use --nnodes MIN:MAX and --max-restarts N"},
    {"min-elastic-nodes max-elastic-nodes", 1, FOREIGN_REFUSED,
     "use --nnodes MIN:MAX and --max-restarts N"},
    {"venv-script", 1, FOREIGN_REFUSED, "activate it before 'ddprun'"},
    {NULL}};

/* Slurm 22.05 to 24.11. Within a job what is asked for again has no effect. */
static const struct foreign srun[] = {
    {"ntasks", 1, FOREIGN_OURS, "np"},
    {"N nodes", 1, FOREIGN_OURS, "nnodes"},
    {"w nodelist", 1, FOREIGN_OURS, "hosts"},
    {"x", 1, FOREIGN_OURS, "exclude"},
    {"F nodefile", 1, FOREIGN_OURS, "hostfile"},
    {"l label", 0, FOREIGN_OURS, "tag-output", "on"},
    {"D", 1, FOREIGN_OURS, "wdir"},
    {"O overcommit", 0, FOREIGN_OURS, "oversubscribe"},
    {"test-only", 0, FOREIGN_OURS, "dry-run"},
    {"gpus-per-task", 1, FOREIGN_OURS, "virtual-local-rank", "1="},
    {"mpi", 1, FOREIGN_OURS, "mpi",
     "pmix=pmix pmix_v2=pmix pmix_v3=pmix pmix_v4=pmix pmix_v5=pmix pmi2=pmi "
     "openmpi=auto none=none"},
    {"cpu-bind", 1, FOREIGN_OURS, "bind-to",
     "none=none no=none cores=core threads=hwthread sockets=socket ldoms=numa "
     "rank_ldom=numa"},
    {"m distribution", 1, FOREIGN_OURS, "map-by",
     "block=block cyclic=cyclic block:block=block block:cyclic=block cyclic:block=cyclic "
     "cyclic:cyclic=cyclic"},
    {"c cpus-per-task threads-per-core ntasks-per-core ntasks-per-socket mem mem-per-cpu "
     "mem-per-gpu mem-bind gres gpus G gpus-per-node gpus-per-socket cpus-per-gpu "
     "gpu-bind gres-flags tres-per-task hint B extra-node-info sockets-per-node "
     "cores-per-socket mincpus cpu-freq gpu-freq acctg-freq profile comment J job-name "
     "mpi-params network slurmd-debug open-mode signal W wait S core-spec thread-spec "
     "T threads wckey msg-timeout tmp power switches mail-type mail-user",
     1, FOREIGN_IGNORED},
    {"K kill-on-bad-exit u unbuffered Q quiet X disable-status exact exclusive overlap "
     "s E preserve-env k no-kill resv-ports propagate nice contiguous spread-job x11 "
     "use-min-nodes quit-on-interrupt whole wait-all-nodes",
     0, FOREIGN_IGNORED},
    {"p partition A account q qos C constraint M clusters b begin d dependency deadline "
     "time-min reservation L licenses priority prefer bb bbf",
     1, FOREIGN_REFUSED, A_JOB},
    {"H hold I immediate Z no-allocate reboot", 0, FOREIGN_REFUSED, A_JOB},
    {"jobid r relative", 1, FOREIGN_REFUSED, "run ddprun in that job, with -H HOSTS"},
    {"t time", 1, FOREIGN_REFUSED, "use --timeout TIME"},
    {"export export-file", 1, FOREIGN_REFUSED,
     "the ranks have your environment; -x NAME=VALUE adds to it"},
    {"o output e error", 1, FOREIGN_REFUSED, "use --output-filename, or > FILE"},
    {"i input", 1, FOREIGN_REFUSED, "use --stdin all, and < FILE"},
    {"multi-prog", 0, FOREIGN_REFUSED,
     "use -np 1 PROGRAM : -np 3 PROGRAM, or --app FILE"},
    {"het-group", 1, FOREIGN_REFUSED, "use -np 1 PROGRAM : -np 3 PROGRAM"},
    {"bcast send-libs", 0, FOREIGN_REFUSED,
     "the program must be on every host, as --preflight checks"},
    {"prolog epilog task-prolog task-epilog", 1, FOREIGN_REFUSED, IN_A_SCRIPT},
    {"uid gid", 1, FOREIGN_REFUSED, LEAVE_IT_OUT},
    {NULL}};

/* Beside ddprun's own options. */
static const struct foreign ambiguous[] = {
    {"c", 1, FOREIGN_REFUSED,
     "mpirun's is -np here; srun's, CPUs of a rank, follows from --bind-to"},
    {"p", 1, FOREIGN_REFUSED,
     "srun's partition is for salloc and sbatch; horovodrun's port is --ssh 'ssh -p PORT'"},
    {NULL}};

static const struct {
    enum foreign_program program;
    const struct foreign *rows; /* a NULL name ends them; the first table counts */
} tables[] = {{AMBIGUOUS, ambiguous},   {OPEN_MPI, open_mpi},
              {HYDRA, hydra},           {TORCHRUN, torchrun},
              {HOROVODRUN, horovodrun}, {ACCELERATE, accelerate},
              {DEEPSPEED, deepspeed},   {SRUN, srun}};

/* accelerate looks for "Open MPI" in the version, DeepSpeed for a program ompi_info. An
 * mpirun, or mpiexec, may be either. */
static const struct foreign_name called[] = {
    {"torchrun", TORCHRUN, "torchrun", "--nproc-per-node=1", NULL},
    {"mpirun", OPEN_MPI | HYDRA, "mpirun (Open MPI) 4.1.4", NULL, NULL},
    {"mpiexec", OPEN_MPI | HYDRA, "mpiexec (Open MPI) 4.1.4", NULL, NULL},
    {"mpiexec.hydra", HYDRA, "HYDRA build details:", NULL, NULL},
    {"horovodrun", HOROVODRUN, "0.28.1", NULL, NULL},
    {"ompi_info", OPEN_MPI, "Open MPI v4.1.4", "--version", NULL},
    {"accelerate", ACCELERATE, "accelerate 1.15", NULL, "launch"},
    {"deepspeed", DEEPSPEED, "deepspeed 0.19", "--x=DDPRUN_LOCAL_RANK_ARG=1", NULL},
    {"srun", SRUN, "slurm 22.05", NULL, NULL},
};

/* Open MPI's parameters of the launcher itself, which is ddprun now. */
static const struct {
    const char *name, *format;
} parameters[] = {
    {"plm_rsh_args", "--ssh=ssh %s"},
    {"plm_rsh_agent", "--ssh=%s"},
    {"orte_default_hostfile", "--hostfile=%s"},
    {"orte_launch_agent", "--agent=%s"},
    {"orte_tag_output", "--tag-output"},
    {"rmaps_base_oversubscribe", "--oversubscribe"},
    {"rmaps_base_mapping_policy", "--map-by=%s"},
    {"hwloc_base_binding_policy", "--bind-to=%s"},
};

const struct foreign_name *foreign_name(const char *path)
{
    for (size_t i = 0; i < ARRAY_LEN(called); i++) {
        if (strcmp(basename(path), called[i].name) == 0)
            return &called[i];
    }
    return NULL;
}

static const struct foreign *find_name(unsigned programs, const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        for (const struct foreign *f = tables[i].rows;
             (tables[i].program & programs) && f->names; f++) {
            if (spelling_is(f->names, name, len))
                return f;
        }
    }
    return NULL;
}

const struct foreign *foreign_find(unsigned programs, const char *word)
{
    size_t dashes = strspn(word, "-");
    const char *name = word + dashes;
    const struct foreign *f = find_name(programs, name, strcspn(name, "="));
    if (f || programs != SRUN || dashes != 1)
        return f;
    f = find_name(programs, name, 1); /* -N2, by getopt */
    return f && f->values > 0 ? f
                              : NULL; /* -lO is two options: unknown, not half taken */
}

const char *foreign_value(const struct foreign *f, const char *word)
{
    const char *name = word + strspn(word, "-");
    size_t len = strcspn(name, "=");
    if (!spelling_is(f->names, name, len))
        return name + 1;
    return name[len] ? name + len + 1 : NULL;
}

const struct foreign_name *foreign_owner(const char *word)
{
    for (size_t i = 0; i < ARRAY_LEN(called); i++) {
        if (!(called[i].programs & FOREIGN_BESIDE) &&
            foreign_find(called[i].programs, word))
            return &called[i];
    }
    return NULL;
}

const struct foreign_name *foreign_started(char *const *argv)
{
    static const struct {
        const char *module, *name;
    } modules[] = {{"torch.distributed.run", "torchrun"},
                   {"torch.distributed.launch", "torchrun"},
                   {"accelerate.commands.launch", "accelerate"},
                   {"deepspeed.launcher.runner", "deepspeed"}};
    for (char *const *w = argv; *w; w++) {
        for (size_t i = 0; i < ARRAY_LEN(modules) && strcmp(*w, "-m") == 0 && w[1]; i++) {
            if (strcmp(w[1], modules[i].module) == 0)
                return foreign_name(modules[i].name);
        }
        if (w > argv && (**w != '-' || strcmp(*w, "-m") == 0))
            break; /* the script */
    }
    const struct foreign_name *n = *argv ? foreign_name(*argv) : NULL;
    bool starts = n && strcmp(n->name, "ompi_info") != 0; /* which prints a version */
    return starts && (!n->command || (argv[1] && strcmp(argv[1], n->command) == 0))
               ? n
               : NULL;
}

/* The word behind "value=" in "a=1 b=2", malloc'ed; NULL: there is none. */
static char *mapped(const char *pairs, const char *value)
{
    size_t n = strlen(value);
    for (const char *p = pairs; *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        if (strncmp(p, value, n) == 0 && p[n] == '=')
            return xstrndup(p + n + 1, len - n - 1);
        p += len;
    }
    return NULL;
}

char *foreign_ours(const struct foreign *f, const char *value)
{
    bool map = f->values > 0 && f->fixed;
    OWNED char *ours = map             ? mapped(f->fixed, value)
                       : f->values > 0 ? xstrdup(value)
                                       : xstrdup(f->fixed ? f->fixed : "");
    bool takes_it = ours && (*ours || (f->values > 0 && !map));
    return !ours ? NULL : xasprintf("--%s%s%s", f->text, takes_it ? "=" : "", ours);
}

char *foreign_mca(const struct foreign *f, const char *const *values)
{
    for (size_t i = 0; strcmp(f->text, "OMPI_MCA_") == 0 && i < ARRAY_LEN(parameters);
         i++) {
        if (strcmp(parameters[i].name, values[0]) == 0 && values[1])
            return xasprintf(parameters[i].format, values[1]);
    }
    return NULL;
}

/* "A_*" and "--zero_stage=3": "A_ZERO_STAGE", malloc'ed. */
static char *variable_name(const char *text, size_t len, const char *word)
{
    if (len == 0 || text[len - 1] != '*')
        return xstrndup(text, len);
    word += strspn(word, "-");
    char *name = xasprintf("%.*s%.*s", (int)len - 1, text, (int)strcspn(word, "="), word);
    for (char *c = name + len - 1; *c; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    return name;
}

/* A whole number of MiB in bytes, malloc'ed; other words as they are. */
static char *in_bytes(const char *mib)
{
    char *end;
    errno = 0;
    long n = strtol(mib, &end, 10);
    return *end || end == mib || errno || n < 0 || n > LONG_MAX >> 20
               ? xstrdup(mib)
               : xasprintf("%ld", n << 20);
}

void foreign_variables(const struct foreign *f, const char *word,
                       const char *const *values, struct strv *variables)
{
    if (f->values == 2) {
        strv_pushf(variables, "%s%s%s%s", f->text, values[0], values[1] ? "=" : "",
                   values[1] ? values[1] : "");
        return;
    }
    OWNED char *value = f->values == 0 ? xstrdup(f->fixed)
                        : f->fixed     ? in_bytes(values[0])
                                       : xstrdup(values[0]);
    for (const char *p = f->text; *p; p += strspn(p, " ")) {
        size_t len = strcspn(p, " ");
        OWNED char *name = variable_name(p, len, word);
        strv_pushf(variables, "%s=%s", name, value);
        p += len;
    }
}

void foreign_complain(const char *word, const char *hint, struct strv *refused)
{
    strv_pushf(refused, "'%.*s': %s", (int)strcspn(word, "="), word, hint);
}

int foreign_refuse(const struct strv *refused, struct ddp_err *err)
{
    struct ddp_err all = {"unknown here: "};
    size_t n = strlen(all.text);
    for (size_t i = 0; i < refused->n && n < sizeof all.text; i++)
        n += (size_t)snprintf(all.text + n, sizeof all.text - n, "%s%s", i ? "; " : "",
                              refused->v[i]);
    return err_set(err, "%.480s (try ddprun --help)", all.text);
}
