/* launcher/cli/options.c - see options.h */
#include "launcher/cli/options.h"

#include "common/mem.h"
#include "launcher/cli/foreign.h"

#define RANKS_MAX 10000000

static const struct word map_words[] = {{"block", MAP_BLOCK},    {"slot", MAP_BLOCK},
                                        {"cyclic", MAP_CYCLIC},  {"node", MAP_CYCLIC},
                                        {"ppr:N:node", MAP_PPR}, {0}};
static const struct word bind_words[] = {{"auto", BIND_AUTO},
                                         {"none", BIND_NONE},
                                         {"core", BIND_CORE},
                                         {"numa", BIND_NUMA},
                                         {"socket", BIND_SOCKET},
                                         {"hwthread", BIND_HWTHREAD},
                                         {0}};
static const struct word tag_words[] = {
    {"auto", TAG_AUTO}, {"off", TAG_OFF}, {"on", TAG_ON}, {0}};
static const struct word hang_words[] = {{"report", ON_HANG_REPORT},
                                         {"stop", ON_HANG_STOP},
                                         {"restart", ON_HANG_RESTART},
                                         {0}};
static const struct word grow_words[] = {
    {"at-restart", GROW_AT_RESTART}, {"now", GROW_NOW}, {0}};
static const struct word elastic_words[] = {
    {"restart", ELASTIC_RESTART}, {"horovod", ELASTIC_HOROVOD}, {0}};
static const struct word store_words[] = {
    {"auto", STORE_AUTO}, {"launcher", STORE_LAUNCHER}, {"rank0", STORE_RANK0}, {0}};
static const struct word name_words[] = {{"ompi", NAMES_OMPI},
                                         {"slurm", NAMES_SLURM},
                                         {"pmi", NAMES_PMI},
                                         {"tf", NAMES_TF},
                                         {"dmlc", NAMES_DMLC},
                                         {"paddle", NAMES_PADDLE},
                                         {"all", NAMES_ALL},
                                         {"none", 0},
                                         {0}};
static const struct word mpi_words[] = {{"auto", MPI_AUTO}, {"pmix", MPI_PMIX},
                                        {"pmi", MPI_PMI},   {"pmi2", MPI_PMI},
                                        {"none", MPI_NONE}, {0}};
static const struct word pty_words[] = {
    {"auto", PTY_AUTO}, {"on", PTY_ON}, {"off", PTY_OFF}, {0}};
static const struct word input_words[] = {{"rank0", INPUT_RANK0},
                                          {"0", INPUT_RANK0},
                                          {"all", INPUT_ALL},
                                          {"none", INPUT_NONE},
                                          {0}};

static const struct word script_words[] = {{"slurm", SCHED_SLURM}, {"sge", SCHED_SGE},
                                           {"pbs", SCHED_PBS},     {"lsf", SCHED_LSF},
                                           {"flux", SCHED_FLUX},   {0}};
static const struct word start_words[] = {{"ssh", BY_SSH},
                                          {"srun", BY_SRUN},
                                          {"qrsh", BY_QRSH},
                                          {"blaunch", BY_BLAUNCH},
                                          {"tmrsh", BY_TMRSH},
                                          {"flux", BY_FLUX},
                                          {0}};

#define AT(member) offsetof(struct opts, member)

const struct option options[] = {
    {.arg = "placement", .doc = "Hosts, ranks and CPUs"},
    {"np n", "N", AT(np), read_number, 1, RANKS_MAX, NULL,
     "start N ranks; default: one per slot (on one machine without GPU: 1)", HERE},
    {"hostfile machinefile f", "FILE", AT(hostfile), read_text, 0, 0, NULL,
     "hosts and their slots, one per line, as Open MPI, MPICH or Horovod write them",
     NOT_IN_SCRIPT, true},
    {"host H hosts", "LIST", AT(hosts), read_hosts, 0, 0, NULL,
     "hosts n1:4,n2:4 or n[01-16]:4; with --hostfile or inside a scheduler's job: use only "
     "these, or leave ^host out",
     NOT_IN_SCRIPT, true},
    {"alloc", "hostfile|slurm|sge|pbs|lsf|flux|sagemaker|hosts|mpi-hostfile|local",
     AT(alloc), read_text, 0, 0, NULL,
     "source of the hosts (hosts: -H); default: the first one that is found",
     NOT_IN_SCRIPT},
    {"nproc-per-node ppn npernode ntasks-per-node", "N", AT(per_node), read_per_node, 1,
     RANKS_MAX, NULL,
     "N ranks on each host; auto (default): its slots, else its GPUs, else 1; gpu: its slots "
     "or GPUs",
     HERE},
    {"N", "N", AT(letter_n), read_number, 1, RANKS_MAX, NULL,
     "N ranks on each host, as in mpirun; with --script: N nodes, as in sbatch", HERE},
    {"nnodes", "N|MIN:MAX", AT(nnodes), read_nnodes, 1, RANKS_MAX, NULL,
     "spread the ranks over the first N hosts; default: all. MIN:MAX: go on with fewer, at "
     "least MIN, when hosts cannot be started or are lost. With --node-rank: the number of "
     "hosts on which ddprun is started; with MIN:MAX others may join later",
     HERE},
    {"min-np", "N", AT(min_np), read_number, 1, RANKS_MAX, NULL,
     "go on with at least N ranks when hosts are lost; in ranks what MIN of --nnodes is in "
     "hosts",
     HERE},
    {"max-np", "N", AT(max_np), read_number, 1, RANKS_MAX, NULL,
     "use at most N ranks, also when hosts are added; default: as many as 256 hosts have",
     HERE},
    {"node-rank", "K", AT(node_rank), read_number, 0, RANKS_MAX, NULL,
     "this is host K, from 0, of --nnodes hosts on each of which ddprun is started by hand; "
     "they meet at --master-addr",
     NOT_IN_SCRIPT},
    {"oversubscribe", NULL, AT(oversubscribe), read_flag, 0, 0, NULL,
     "allow more ranks than slots, up to max_slots"},
    {"map-by", "block|cyclic|ppr:N:node", AT(map_by), read_map_by, 0, 0, map_words,
     "order of ranks: block (or slot) fills one host after the other, cyclic (or node) goes "
     "round, ppr:N:node puts N on each"},
    {"bind-to", "auto|none|core|hwthread|numa|socket", AT(bind_to), read_bind_to, 0, 0,
     bind_words,
     "CPUs of a rank: auto (a share near its GPU; not bound on a small machine), none, "
     "core, hwthread (one each), numa, socket (all of the one that holds its share)"},
    {"virtual-local-rank", NULL, 0, read_one_gpu, 0, 0, NULL,
     "each rank sees only its own GPU, as device 0, and LOCAL_RANK=0"},

    {.arg = "environment", .doc = "What the ranks see: variables, MPI, store, network"},
    {"x", "NAME[=VALUE]", 0, read_export, 0, 0, NULL,
     "pass this variable to all ranks; may be repeated"},
    {"rank-names", "LIST", AT(rank_names), read_rank_names, 0, 0, name_words,
     "set rank and size under the names of ompi, slurm, pmi, too; all (default: these "
     "three) or none; tf: TF_CONFIG of TensorFlow; dmlc: XGBoost's tracker; "
     "paddle: PaddlePaddle's, with --store rank0"},
    {"mpi", "[auto|pmix|pmi|none]", AT(mpi), read_choice, 0, 0, mpi_words,
     "offer MPI programs PMIx, PMI (also: pmi2), both (auto, the default) or none"},
    {"store", "auto|launcher|rank0", AT(store), read_choice, 0, 0, store_words,
     "launcher: ddprun runs the store at MASTER_PORT; rank0: rank 0 of the program does; "
     "auto (default): rank0 in a job of one rank, and with --rank-names paddle"},
    {"store-port", "PORT", AT(store_port), read_number, 1, 65535, NULL,
     "MASTER_PORT; default: any free port"},
    {"master-port", "PORT", AT(master_port), read_number, 1, 65535, NULL,
     "MASTER_PORT, as --store-port; with --node-rank the port at which the hosts meet "
     "(default: 29400)"},
    {"store-open", NULL, AT(store_open), read_flag, 0, 0, NULL,
     "serve any client that can reach the store; default: this job only"},
    {"master-addr rdzv-endpoint", "ADDRESS[:PORT]", AT(master_addr), read_master, 0, 0,
     NULL, "MASTER_ADDR; default: an address of rank 0's host that all hosts can reach"},
    {"interface network-interface iface", "NAME", AT(interface), read_text, 0, 0, NULL,
     "network interface of the store, Gloo and NCCL"},
    {"container", "IMAGE", AT(container), read_text, 0, 0, NULL,
     "start each rank inside this image, with the working directory, /tmp, network, "
     "/dev/shm and GPUs of the host"},
    {"container-engine", "NAME", AT(container_engine), read_text, 0, 0, NULL,
     "apptainer, singularity, podman or enroot; default: the first one in PATH"},
    {"include", "h1@h2", 0, read_include, 0, 0, NULL,
     "use only these hosts, as in DeepSpeed; the same as -H h1,h2", NOT_IN_SCRIPT},
    {"exclude", "h1@h2", 0, read_include, 0, 0, NULL,
     "leave these hosts out; the same as -H ^h1,^h2", NOT_IN_SCRIPT},
    {"wdir wd chdir", "DIR", AT(wdir), read_text, 0, 0, NULL,
     "working directory of the ranks; default: that of ddprun"},

    {.arg = "output", .doc = "Output and input"},
    {"tag-output", "[=auto|off|on]", AT(tag_output), read_choice, 0, 0, tag_words,
     "prefix each line with its rank and host; auto (default): if there are several ranks; "
     "without =...: on"},
    {"timestamp-output", NULL, AT(timestamp_output), read_flag, 0, 0, NULL,
     "prefix each line with the time it was written"},
    {"output-filename", "PATTERN", AT(output_filename), read_text, 0, 0, NULL,
     "write each rank's output to files, too: a directory, or a name with %r (rank), %h "
     "(host), %a (attempt)"},
    {"output-from", "RANKS", AT(output_from), read_ranks, 0, 0, NULL,
     "show only these ranks, such as 0-3,8"},
    {"stdin", "rank0|all|none", AT(input), read_choice, 0, 0, input_words,
     "ranks that read the standard input: rank0 (default), all, none"},
    {"pty", "[=auto|off|on]", AT(pty), read_choice, 0, 0, pty_words,
     "give the rank a pseudo-terminal, for pdb, ipython, rich; auto (default): if there is "
     "one rank and ddprun is on a terminal; without =...: on"},
    {"no-pty", NULL, 0, read_no_pty, 0, 0, NULL,
     "the rank has pipes, also on a terminal; the same as --pty=off"},

    {.arg = "watch", .doc = "Watch a running job"},
    {"events", "FILE|fd:N|-", AT(events), read_events, 0, 0, NULL,
     "append what happens to the job as JSON, an object per line, to this file, descriptor "
     "or, with -, to the standard output"},
    {"ui", "[ADDRESS:PORT]", 0, read_ui, 0, 0, NULL,
     "serve a page that shows the job: hosts, ranks, their output, failures, loss; by default "
     "for this machine only (127.0.0.1), and always by a secret in its URL"},
    {"metrics", "ADDRESS:PORT|FILE", AT(metrics), read_metrics, 0, 0, NULL,
     "serve metrics for Prometheus at /metrics, to this machine only if no address is given "
     "(0.0.0.0: to all), or write them to a file every 10 s"},
    {"metric", "REGEX", AT(metric), read_regex, 0, 0, NULL,
     "take name=value from lines of output that match, for --ui and --metrics; default: "
     "lines of rank 0 with 'loss'"},
    {"top", NULL, AT(top), read_flag, 0, 0, NULL,
     "show a running job in this terminal, named by the pid of its ddprun or by its id if "
     "there are several; start nothing",
     HERE},
    {"hang-after", "TIME|off", AT(hang_after_ms), read_hang_after, 1000, 0, NULL,
     "when no rank has entered a collective for so long and some wait in one, report which "
     "rank is missing and where it is; default: 5m. Ctrl-\\ reports at any time"},
    {"on-hang", "report|stop|restart", AT(on_hang), read_choice, 0, 0, hang_words,
     "after a report of --hang-after go on (default), stop the job, or restart it as "
     "--max-restarts allows"},
    {"stragglers", "[=PERCENT]", 0, read_stragglers, 0, 0, NULL,
     "name a rank that comes late to collectives again and again, if the others wait for it "
     "for so much of the time; default: 10"},
    {"report-on", "JOB", AT(report_on), read_text, 0, 0, NULL,
     "print what the ranks of a running job of yours do, given by the pid of its ddprun or "
     "its id",
     NOT_IN_SCRIPT},

    {.arg = "launch", .doc = "Start, supervise, stop"},
    {"app configfile", "FILE", AT(app), read_text, 0, 0, NULL,
     "several programs, one per line: -np 2 program args...", HERE},
    {"as", "LAUNCHER", 0, read_as_late, 0, 0, NULL,
     "must be the first option: what follows is the command line of " FOREIGN_NAMES,
     HERE},
    {"m module", NULL, AT(module), read_flag, 0, 0, NULL,
     "the program is a Python module, as in 'python -m'"},
    {"no-python", NULL, AT(no_python), read_flag, 0, 0, NULL,
     "run the program as it is; default: a .py, .sh or .jl file that is not executable gets "
     "its interpreter"},
    {"timeout", "TIME", AT(timeout_ms), read_span, 1, 0, NULL,
     "stop the job after 90, 5m, 1h30m with exit code 124; default: never"},
    {"start-timeout", "TIME", AT(start_timeout_ms), read_span, 1, 0, NULL,
     "how long to wait for all hosts at the start; default: 60s"},
    {"node-timeout", "TIME", AT(node_timeout_ms), read_span, 2000, 0, NULL,
     "a host that is silent for so long is lost, which ends the job; default: 60s"},
    {"peer-key", "WHERE", AT(peer_key), read_text, 0, 0, NULL,
     "how ddprun processes started on each host authenticate: by a file in this shared "
     "directory (default: ~/.ddprun), by the secret in this file, or none: by address only"},
    {"grace", "TIME", AT(grace_ms), read_span, 0, 0, NULL,
     "time between TERM and KILL when ranks are stopped; default: 5s"},
    {"max-restarts", "N", AT(max_restarts), read_number, 0, RANKS_MAX, NULL,
     "when a rank fails, restart all ranks, up to N times; default: 0"},
    {"restart-delay", "TIME", AT(restart_delay_ms), read_span, 1, 0, NULL,
     "wait so long before ranks are restarted after a failed rank, twice as long after each "
     "attempt that got no further, up to 16 times; default: 0"},
    {"max-no-progress", "K", AT(max_no_progress), read_number, 1, RANKS_MAX, NULL,
     "when K attempts in a row got no further, end the job with exit code 93: do not requeue. "
     "Progress: a rank prints 'ddprun.checkpoint STEP', or --progress-file changes"},
    {"progress-file", "FILE", AT(progress_file), read_text, 0, 0, NULL,
     "a file or directory that changes when the program gets further, such as its "
     "checkpoint"},
    {"spares", "N", AT(spares), read_number, 0, RANKS_MAX, NULL,
     "the last N hosts get no rank; each takes the place of a host that is lost, in another "
     "attempt"},
    {"node-wait", "TIME", AT(node_wait_ms), read_span, 1, 0, NULL,
     "when a host is lost, and neither a spare nor --nnodes MIN:MAX helps, wait so long for it "
     "to come back, or for another one; default: the job ends"},
    {"host-discovery-script", "COMMAND", AT(discovery), read_text, 0, 0, NULL,
     "the hosts: what this command prints, host:slots a line. It is run again and again: hosts "
     "come and go, within --nnodes MIN:MAX",
     NOT_IN_SCRIPT},
    {"discovery-interval", "TIME", AT(discovery_interval_ms), read_span, 100, 0, NULL,
     "how often --host-discovery-script is run, or a hostfile checked; default: 1s",
     NOT_IN_SCRIPT},
    {"discovery-timeout", "TIME", AT(discovery_timeout_ms), read_span, 100, 0, NULL,
     "kill the command of --host-discovery-script after this time; default: 30s",
     NOT_IN_SCRIPT},
    {"grow", "at-restart|now", AT(grow), read_choice, 0, 0, grow_words,
     "when hosts that are added get ranks: at the next restart (default), or now: all ranks "
     "are stopped and started again",
     NOT_IN_SCRIPT},
    {"elastic", "restart|horovod", AT(elastic), read_choice, 0, 0, elastic_words,
     "when a rank fails, or hosts come and go: restart all ranks (default); horovod: the others "
     "keep running, failed ranks are replaced, up to --max-restarts of them, and all form "
     "Horovod's next ring (hvd.elastic.run)",
     NOT_IN_SCRIPT},
    {"health-check", "COMMAND", AT(health_check), read_text, 0, 0, NULL,
     "run this command on every host before each attempt, and on a spare before it takes a "
     "place; a host where it fails is treated as lost"},
    {"health-timeout", "TIME", AT(health_timeout_ms), read_span, 1, 0, NULL,
     "--health-check has failed after this time; default: 30s"},
    {"preload", "MODULES", AT(preload), read_modules, 0, 0, NULL,
     "fork the Python ranks of a host from one interpreter that has imported these, such as "
     "torch,numpy, if that is safe; default: what the script imports first, if torch is "
     "among it"},
    {"no-preload", NULL, 0, read_no_preload, 0, 0, NULL,
     "each Python rank imports on its own"},
    {"start launcher", "ssh|srun|qrsh|blaunch|tmrsh|flux", AT(start), read_choice, 0, 0,
     start_words,
     "how to start agents on other hosts; default: by the scheduler of this job, else by ssh"},
    {"ssh", "COMMAND", AT(ssh), read_command, 0, 0, NULL,
     "the ssh command, split at blanks; default: ssh"},
    {"ssh-window", "N", AT(ssh_window), read_number, 1, 4096, NULL,
     "ssh connections to open at the same time; default: 64"},
    {"tree-width", "N", AT(tree_width), read_number, 0, 4096, NULL,
     "each host starts at most N others; 0: ddprun starts all; default: 32"},
    {"agent", "PATH|push", AT(agent), read_text, 0, 0, NULL,
     "path of ddprun-agent on the hosts; default: beside ddprun. push: copy it there by ssh"},

    {.arg = "batch", .doc = "Batch scripts"},
    {"script", "slurm|sge|pbs|lsf|flux", AT(script), read_choice, 0, 0, script_words,
     "print a batch script that runs the program; start nothing", HERE},
    {"submit", NULL, AT(submit), read_flag, 0, 0, NULL,
     "submit that script, and print the job's number", HERE},
    {"site", "NAME|FILE", AT(site), read_text, 0, 0, NULL,
     "the cluster: its limits are checked, its names used", SCRIPT_ONLY},
    {"list-sites", NULL, AT(list_sites), read_flag, 0, 0, NULL,
     "print the known clusters and their limits", HERE},
    {"gpus-per-node", "N", AT(gpus_per_node), read_number, 0, 1024, NULL,
     "GPUs of each node, one rank per GPU; default: all GPUs of the site's nodes",
     SCRIPT_ONLY},
    {"cpus-per-task", "N", AT(cpus_per_task), read_number, 1, 4096, NULL,
     "CPUs of each rank; default: its share of the node", SCRIPT_ONLY},
    {"mem", "SIZE", 0, read_memory, 0, 0, NULL,
     "memory of each node, such as 64G; default: the job's share of the node",
     SCRIPT_ONLY},
    {"time walltime", "TIME", 0, read_walltime, 0, 0, NULL,
     "time limit of the job: 90m, 2h, 1d12h, 36:00:00; default: 1h", SCRIPT_ONLY},
    {"warning", "TIME", AT(warning_ms), read_span, 1000, 0, NULL,
     "send the ranks SIGTERM so long before the time limit; default: 2m", SCRIPT_ONLY},
    {"requeue", "[=WORDS]", 0, read_requeue, 0, 0, NULL,
     "requeue a job that ran out of time or has lost a host; the program then gets these arguments, too; "
     "without =...: --resume",
     SCRIPT_ONLY},
    {"partition queue", "NAME", AT(partition), read_plain, 0, 0, NULL,
     "partition, queue or resource type; default: the site's first that fits",
     SCRIPT_ONLY},
    {"account", "NAME", AT(account), read_plain, 0, 0, NULL,
     "account, project or group to charge", SCRIPT_ONLY},
    {"job-name", "NAME", AT(job_name), read_text, 0, 0, NULL,
     "name of the job; default: the program's", SCRIPT_ONLY},
    {"modules", "NAMES", AT(modules), read_plain, 0, 0, NULL,
     "environment modules to load, separated by blanks; default: the site's",
     SCRIPT_ONLY},

    {.arg = "data", .doc = "Data sets, before a job"},
    {"fetch-data", "NAME", AT(fetch_data), read_text, 0, 0, NULL,
     "download a data set (mnist, fashion-mnist) into the directory NAME and verify it; on "
     "a login node, as compute nodes often have no internet"},
    {"data-dir", "DIR", AT(data_dir), read_text, 0, 0, NULL,
     "with --fetch-data: the directory"},
    {"data-mirror", "URL", AT(data_mirror), read_url, 0, 0, NULL,
     "with --fetch-data: download from https://... or file:///..."},
    {"data-sets", "FILE", AT(data_sets), read_text, 0, 0, NULL,
     "with --fetch-data: another table of data sets"},

    {.arg = "scaling", .doc = "Measure scaling"},
    {"scaling", "SIZES", AT(scaling), read_text, 0, 0, NULL,
     "run with 1,2,4,8 ranks, and show speed-up and efficiency", HERE},
    {"scaling-dir", "DIR", AT(scaling_dir), read_text, 0, 0, NULL,
     "directory of its table, as CSV, text and SVG; default: scaling", HERE},

    {.arg = "inspect", .doc = "Plans, checks and logs"},
    {"dry-run", NULL, AT(dry_run), read_flag, 0, 0, NULL,
     "print the plan, the environment and the commands; start nothing", HERE},
    {"preflight", NULL, AT(preflight), read_flag, 0, 0, NULL,
     "check every host for this program: reachable, same files and libraries, GPUs, clock, "
     "space, limits, names, network; start nothing"},
    {"show-env", NULL, AT(show_env), read_flag, 0, 0, NULL,
     "print the table of variables that ranks receive"},
    {"report", NULL, AT(report), read_flag, 0, 0, NULL,
     "print at the end how many ranks ran where, and how long it took"},
    {"v verbose", NULL, AT(verbose), read_flag, 0, 0, NULL,
     "print decisions, and replaced variables"},
    {"log-level", "LEVELS", AT(log_level), read_text, 0, 0, NULL,
     "error, warn, info, debug, trace; by part: start=debug,store=trace"},
    {"help h", "[TOPIC]", 0, NULL, 0, 0, NULL,
     "the usual options; with a TOPIC or an option's name: help about that"},
    {"version V", NULL, 0, NULL, 0, 0, NULL, "the version"},
};

const size_t options_len = ARRAY_LEN(options);
