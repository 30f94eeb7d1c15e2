/* launcher/opts.h - all options of ddprun, filled by cli_parse()
 *
 * Immutable once cli_parse() has returned. Strings are owned by the struct's strv members
 * or borrowed from argv, which outlives everything.
 */
#ifndef LAUNCHER_OPTS_H
#define LAUNCHER_OPTS_H

#include "common/strv.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum map_by { MAP_BLOCK, MAP_CYCLIC, MAP_PPR }; /* slot/block, node/cyclic, ppr:N:node */
enum bind_to {
    BIND_AUTO,
    BIND_NONE,
    BIND_CORE,
    BIND_NUMA,
    BIND_SOCKET,
    BIND_HWTHREAD,
    BIND_ONE_GPU = 64 /* or-ed to one of these: --virtual-local-rank */
};
enum tag_output { TAG_AUTO, TAG_OFF, TAG_ON }; /* AUTO: on with more than one rank */
enum on_hang { ON_HANG_REPORT, ON_HANG_STOP, ON_HANG_RESTART };
enum grow { GROW_AT_RESTART, GROW_NOW };
enum elastic_mode { ELASTIC_RESTART, ELASTIC_HOROVOD };
/* Who serves the store at MASTER_ADDR:MASTER_PORT; auto: the launcher, but in a job of
 * one rank that rank, as if it ran without a launcher. */
enum store_mode { STORE_AUTO, STORE_LAUNCHER, STORE_RANK0 };
enum rank_names {
    NAMES_OMPI = 1,
    NAMES_SLURM = 2,
    NAMES_PMI = 4,
    NAMES_ALL = 7, /* the default */
    NAMES_TF = 8,
    NAMES_DMLC = 16,
    NAMES_PADDLE = 32
};
/* how agents are started on other hosts (transport/transport.h); DEFAULT: by the
 * allocation
 */
enum start_by { BY_DEFAULT, BY_SSH, BY_SRUN, BY_QRSH, BY_BLAUNCH, BY_TMRSH, BY_FLUX };
enum mpi_serve { MPI_NONE = 0, MPI_PMIX = 1, MPI_PMI = 2, MPI_AUTO = 3 };
/* a pseudo-terminal for rank 0; AUTO: for one rank on a terminal */
enum use_pty { PTY_AUTO, PTY_ON, PTY_OFF };
enum input_to { INPUT_RANK0, INPUT_ALL, INPUT_NONE };
enum scheduler { SCHED_NONE, SCHED_SLURM, SCHED_SGE, SCHED_PBS, SCHED_LSF, SCHED_FLUX };
/* All of them, for messages. */
#define SCHEDULER_NAMES "slurm, sge, pbs, lsf or flux"

/* With --container a rank is "sh -c TEXT IMAGE PROGRAM..."; TEXT begins with this and the
 * engine's name, which --preflight reads, and is a comment for the shell. */
#define CONTAINER_MARK ": --container "

struct foreign_name; /* cli/foreign.h */

struct opts {
    /* placement */
    int np;         /* -np; 0: all slots */
    int per_node;   /* --nproc-per-node, -ppn; 0: slots */
    bool per_gpu;   /* --nproc-per-node gpu: a host without slots must have a GPU */
    bool per_cpu;   /* --nproc-per-node cpu: as many as this machine has CPUs */
    int nnodes;     /* --nnodes: use the first N; 0: all */
    int min_nnodes; /* --nnodes MIN:MAX: go on with that many; 0: none may be missing */
    int min_np, max_np;   /* --min-np, --max-np: limits beside these; 0: none */
    int start_np;         /* no start with fewer slots than that; 0: no limit */
    const char *hostfile; /* NULL: none */
    const char *hosts;    /* -H; NULL: none */
    const char *hosts_by; /* the option that gave them: --include, --exclude; NULL: -H */
    const char *alloc;    /* --alloc: name of a source; NULL: detect */
    int node_rank;        /* --node-rank: this is node k of --nnodes, ddprun is started on
                             each; -1: not given */
    bool oversubscribe;
    enum map_by map_by;
    int ppr; /* for MAP_PPR */
    enum bind_to bind_to;

    /* environment of the ranks */
    struct strv export_env; /* -x: "NAME" or "NAME=value" */
    unsigned rank_names;    /* enum rank_names, or-ed */
    enum mpi_serve mpi;     /* services for MPI programs */
    enum store_mode store;
    int store_port;        /* 0: any free one */
    bool store_open;       /* --store-open: no admission control */
    const char *interface; /* --interface: store, Gloo and NCCL together; NULL: choose */
    const char *master_addr; /* --master-addr; NULL: choose */
    int master_port;         /* --master-port, or that of --master-addr; 0: not given */
    int addr_port;           /* --master-addr ADDRESS:PORT; 0: without PORT */
    const char *peer_key;  /* --peer-key: none, a file, or a directory; NULL: ~/.ddprun */
    const char *container; /* --container: an image; NULL: none */
    const char *container_engine; /* NULL: the first one in PATH */
    const char *wdir;             /* NULL: where ddprun was started */

    /* output and input */
    enum tag_output tag_output;
    bool timestamp_output;
    const char *output_filename; /* directory or pattern of per-rank files; NULL: none */
    const char *output_from;     /* idset of ranks that reach the terminal; NULL: all */
    enum input_to input;
    enum use_pty pty;
    const char *ui;        /* --ui: ADDRESS:PORT, "0": a port of loopback; NULL: none */
    const char *metrics;   /* --metrics: ADDRESS:PORT or a file; NULL: none */
    const char *metric;    /* --metric: a regular expression; NULL: lines with "loss" */
    bool top;              /* --top: show a running job; the program is its pid or id */
    int64_t hang_after_ms; /* --hang-after; 0: off; default 5 min */
    enum on_hang on_hang;
    int stragglers; /* --stragglers: percent of the time that others wait; 0: off */
    const char *report_on; /* --report-on: pid or id of a running job; NULL: none */
    const char *events;    /* --events: a path, "fd:N" or "-"; NULL: none */

    /* launch and supervision */
    const char *agent;        /* path of ddprun-agent on the nodes; NULL: beside ddprun */
    enum start_by start;      /* --start */
    const char *ssh;          /* --ssh: the command, split at blanks; NULL: "ssh" */
    int tree_width;           /* k of the k-ary tree; 0: flat; default 32 */
    int ssh_window;           /* concurrent ssh processes; default 64 */
    int64_t start_timeout_ms; /* for all agents to join; default 60 s */
    int64_t timeout_ms;       /* --timeout of the whole job; 0: none */
    int64_t node_timeout_ms;  /* silence after which a node is lost; default 60 s */
    int64_t grace_ms;         /* TERM to KILL; default 5 s */
    int max_restarts;         /* restarts of all ranks after a failure; default 0 */
    int64_t restart_delay_ms; /* before the next one, doubled if stuck; default 0 */
    int max_no_progress;      /* attempts without progress that end the job; 0: none */
    const char *progress_file; /* changes with progress; NULL: none */
    int spares;                /* hosts that replace lost ones; default 0 */
    int64_t node_wait_ms;      /* for a host in the place of a lost one; 0: none */
    const char *discovery;     /* --host-discovery-script; NULL: none */
    int64_t discovery_interval_ms, discovery_timeout_ms; /* default 1 s, 30 s */
    enum grow grow;
    enum elastic_mode elastic; /* what ranks do that are left when others are lost */
    const char *health_check;  /* --health-check; NULL: none */
    int64_t health_timeout_ms; /* default 30 s */
    /* A job that ranks of another one have started by MPI_Comm_spawn() (spawned.h): "2",
     * the second of them, or "2.1", the first one of that; NULL: started otherwise. */
    const char *spawn_number;
    bool spawn_waits;       /* a rank waits until its ranks have called MPI_Init */
    struct strv spawn_keys; /* then for its PMI: "KEY=VALUE" */
    bool dry_run, show_env, verbose, report, preflight;
    const char *log_level;
    /* --preload: modules imported once per node, "torch,numpy"; "": those the script
     * imports first (default); NULL: none */
    const char *preload;

    /* --script: a batch script instead of a launch */
    enum scheduler script; /* SCHED_NONE: the site's */
    bool submit, list_sites;
    const char *site;      /* --site: a name or a file; NULL: the scheduler's plain one */
    const char *partition; /* NULL: the site's */
    const char *account, *job_name, *modules; /* NULL: none, the program's, the site's */
    const char *requeue;     /* arguments for a requeued program; NULL: no requeue */
    int gpus_per_node;       /* -1: those of the partition's nodes */
    int cpus_per_task;       /* 0: a rank's share of the node */
    int letter_n;            /* -N: per_node, or nnodes with --script; 0: not given */
    int64_t walltime_s;      /* --time; 0: an hour */
    int64_t warning_ms;      /* --warning: from SIGTERM to the limit; 0: two minutes */
    int64_t memory_mb;       /* of a node; 0: the site's */
    const char *scaling;     /* --scaling: sizes; NULL: one launch */
    const char *scaling_dir; /* directory of its table */
    struct strv passed;      /* options for the ddprun inside the job, verbatim */
    struct strv given; /* options of the command line, by their first names (options.c) */

    /* data sets, before a job; --fetch-data */
    const char *fetch_data;  /* its name; NULL: no --fetch-data */
    const char *data_dir;    /* target; NULL: a directory of that name */
    const char *data_mirror; /* URL of a directory of the files; NULL: the table's */
    const char *data_sets;   /* another table; NULL: the installed one */

    struct strv texts;   /* owns strings cut out of argv: the host of "host:port" */
    struct strv origins; /* options that are not on the command line, and their origin */
    const struct foreign_name *as; /* --as, or argv[0]; NULL: ddprun */
    struct strv ignored;           /* options of other launchers without effect here */
    bool end_marked;               /* "--" in front of the program */
    bool module;                   /* -m: the program is a Python module */
    bool no_python;    /* --no-python: run the program without an interpreter */
    char *interpreter; /* owned: the interpreter that was added, and why; NULL: none */
    struct strv interpreted; /* owns argv then */
    struct strv apps;        /* further programs in argv (apps.h) */
    const char *app;         /* --app: a file with programs; NULL: none */
    char *const *argv; /* the program and its arguments, NULL-terminated, borrowed */
};

/* Was option `name`, the first of its names, on the command line? */
static inline bool opts_given(const struct opts *o, const char *name)
{
    return strv_has(&o->given, name, strlen(name));
}

/* Ranks on each host; 0: its slots. */
static inline int opts_per_node(const struct opts *o)
{
    return o->map_by == MAP_PPR ? o->ppr : o->per_node;
}

/* Hosts that the job needs, of --nnodes; 0: it was not given. */
static inline int opts_least_nodes(const struct opts *o)
{
    return o->min_nnodes > 0 ? o->min_nnodes : o->nnodes;
}

/* For messages: the option that the user gave. */
static inline const char *opts_hosts_by(const struct opts *o)
{
    return o->hosts_by ? o->hosts_by : "-H";
}

#endif
