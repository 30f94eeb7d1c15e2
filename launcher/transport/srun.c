/* launcher/transport/srun.c - agents as the tasks of one step of a Slurm job
 *
 * One srun starts one task on each node: Slurm's daemons fan out, and the tasks are under
 * its limits, accounting and signals, with the job's GPUs on each node in
 * CUDA_VISIBLE_DEVICES. The step must run whatever options the job was submitted with:
 * beside other steps, with all resources of the job on the node, one task per node. That
 * takes several settings, which change from version to version. An unknown option makes
 * srun fail, an unknown variable is ignored: so all but the oldest options are given as
 * variables. From 23.11 on --external-launcher replaces them; but such a step ignores
 * --no-kill (stepmgr.c, _build_ext_launcher_step(), up to 26.05).
 *
 * Most of srun's options are also read from SLURM_* variables, and the batch script's
 * environment is full of those: what the job was submitted with (SLURM_NTASKS,
 * SLURM_GPUS_PER_TASK, SLURM_CPUS_PER_TASK, ...), and in a step the step's. They are not
 * passed to srun, which gets the job's data from the controller by its number. The ranks
 * get them from the launcher.
 *
 * A node that fails ends the step, and later, if the job was not submitted with --no-kill
 * either, the job. The agents of the other nodes must stay, for the next attempt.
 *
 * A job with --gpus-per-task gives a step as many GPUs as it has tasks: one agent per
 * node would have one of them. There the step has as many tasks as the job; on each node
 * the first is the agent, and the others exit at once (agent/main.c).
 */
#include "common/hostlist.h"
#include "common/mem.h"
#include "launcher/alloc/sched.h"
#include "launcher/envfwd.h"
#include "launcher/transport/diagnose.h"
#include "launcher/transport/program.h"
#include "launcher/transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* srun's variables that are not options of a step. */
static const char *const kept[] = {
    "SLURM_CONF",     "SLURM_JOB_ID",   "SLURM_JOBID", "SLURM_WORKING_CLUSTER",
    "SLURM_CLUSTERS", "SLURM_HET_SIZE", "SLURM_JWT",   "SLURM_UMASK"};

/* Prefixes: options of plugins, and the components of a heterogeneous job. */
static const char *const kept_families[] = {"SLURM_SPANK_", "_SLURM_SPANK_",
                                            "SLURM_JOB_ID_HET_GROUP_"};

static const char *const settings[] = {
    "SLURM_OVERLAP=1",      /* beside other steps */
    "SLURM_MEM_PER_NODE=0", /* all memory of the job on the node */
    "SLURM_CPU_BIND=none",  /* the agent binds ranks */
    "SLURM_MEM_BIND=none",   "SLURM_MPI_TYPE=none", /* agents do not use MPI */
    "SLURM_EXPORT_ENV=ALL",  /* a job with --export=NONE would lose its PATH */
    "SLURM_STDINMODE=all",   /* the bootstrap lines, to each task */
    "SLURM_KILL_BAD_EXIT=0", /* ddprun decides when tasks end, */
    "SLURM_WAIT=0",          /* also after one has ended early */
    "SLURM_WORKING_DIR=/",   /* exists everywhere */
};

static bool is_option(const char *entry)
{
    size_t len = strcspn(entry, "=");
    bool ours = strncmp(entry, "SLURM_", 6) == 0 || strncmp(entry, "SRUN_", 5) == 0 ||
                strncmp(entry, "_SLURM_", 7) == 0;
    for (size_t i = 0; ours && i < ARRAY_LEN(kept); i++) {
        if (strlen(kept[i]) == len && memcmp(kept[i], entry, len) == 0)
            return false;
    }
    for (size_t i = 0; ours && i < ARRAY_LEN(kept_families); i++) {
        if (strncmp(entry, kept_families[i], strlen(kept_families[i])) == 0)
            return false;
    }
    return ours;
}

static void environment(char *const *ours, struct strv *env)
{
    for (char *const *e = ours; *e; e++) {
        OWNED char *name = xstrndup(*e, strcspn(*e, "="));
        if (!is_option(*e) && !envfwd_stays(name))
            strv_push(env, *e);
    }
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        strv_push(env, settings[i]);
}

void srun_unset_settings(void)
{
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        OWNED char *name = xstrndup(settings[i], strcspn(settings[i], "="));
        unsetenv(name);
    }
}

/* --- heterogeneous jobs ------------------------------------------------------------- */

enum { COMPONENTS_MAX = 128 };

static int components(void)
{
    const char *size = getenv("SLURM_HET_SIZE");
    int n = size ? atoi(size) : 1;
    return n > 1 && n <= COMPONENTS_MAX ? n : 1;
}

/* A step belongs to one component; each component gets its own srun. */
static unsigned part(const char *host)
{
    int n = components();
    for (int i = 0; i < n && n > 1; i++) {
        struct ddp_err err;
        SCOPED(strv_finish) struct strv names = {0};
        OWNED char *name = xasprintf("SLURM_JOB_NODELIST_HET_GROUP_%d", i);
        const char *list = getenv(name);
        if (list && hostlist_expand(list, &names, &err) == 0 &&
            strv_has(&names, host, strlen(host)))
            return (unsigned)i;
    }
    return 0;
}

/* --- the command -------------------------------------------------------------------- */

/* As many tasks as the job if they bring its GPUs; else one for each of n nodes. */
static unsigned long tasks_for(size_t n)
{
    const char *tasks = getenv("SLURM_NTASKS"), *nodes = getenv("SLURM_JOB_NUM_NODES");
    unsigned long all = tasks ? strtoul(tasks, NULL, 10) : 0;
    bool whole = nodes && strtoul(nodes, NULL, 10) == n;
    return sched_slurm_gpus_per_task() && whole && all > n && all <= 1 << 20 ? all : n;
}

/* A compressed list; but only 23.11 and later read text after a bracket. */
static void push_nodelist(const struct strv *names, struct strv *argv)
{
    OWNED char *list = hostlist_compress(names->v, names->n);
    const char *p = strchr(list, ']');
    while (p && (!p[1] || p[1] == ','))
        p = strchr(p + 1, ']');
    if (!p) {
        strv_pushf(argv, "--nodelist=%s", list);
        return;
    }
    char *word = xasprintf("--nodelist=%s", names->v[0]);
    for (size_t i = 1; i < names->n; i++)
        xappendf(&word, ",%s", names->v[i]);
    strv_push_nodup(argv, word);
}

static void command(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv)
{
    SCOPED(strv_finish) struct strv names = {0};
    for (size_t i = 0; i < n; i++)
        strv_push(&names, hosts->hosts[nodes[i]].name);
    unsigned long tasks = tasks_for(n);
    strv_push(argv, "srun");
    strv_pushf(argv, "-N%zu", n);
    strv_pushf(argv, "-n%lu", tasks);
    if (tasks == n)
        strv_push(argv, "--ntasks-per-node=1");
    push_nodelist(&names, argv);
    strv_push(argv, "--no-kill");
    if (components() > 1)
        strv_pushf(argv, "--het-group=%u", part(names.v[0]));
    strv_push(argv, hosts->agent);
    if (tasks != n)
        strv_push(argv, "--once-per-node");
}

/* --- its messages ------------------------------------------------------------------- */

/* Lines that are sure: the conversions are the hosts and, with two, the reason. */
static const struct {
    const char *line;
    int conversions;
    const char *text;
    bool gone;
} failures[] = {
    {"srun: error: Task launch for %*s failed on node %m[^:]: %m[^\n]", 2,
     "Slurm cannot start a task there: %s", false},
    {"srun: error: Node failure on %m[^\n]", 1, "Slurm reports that the node has failed",
     true},
    {"ddprun-agent: %m[^: ]: %m[^\n]", 2, "%s", false}, /* "cannot call back ..." */
};

static bool blame_failure(const char *line, struct blame *b)
{
    for (size_t i = 0; i < ARRAY_LEN(failures) && !b->hosts; i++) {
        OWNED char *host = NULL, *why = NULL;
        if (sscanf(line, failures[i].line, &host, &why) != failures[i].conversions)
            continue;
        b->hosts = xstrdup(host);
        b->sure = true;
        b->gone = failures[i].gone;
        snprintf(b->text, sizeof b->text, failures[i].text, why);
    }
    return b->hosts;
}

/* "srun: error: node[002-003]: tasks 1-2: Exited with exit code 2" */
static bool blame_exit(const char *line, const char *agent, struct blame *b)
{
    OWNED char *hosts = NULL, *fate = NULL;
    int code = 0;
    if (sscanf(line, "srun: error: %m[^: ]: task%*[^:]: %m[^\n]", &hosts, &fate) != 2)
        return false;
    b->hosts = xstrdup(hosts);
    sscanf(fate, "Exited with exit code %d", &code);
    /* slurmstepd ends with the errno of its exec: ENOENT, EACCES */
    int as_shell = code == 2 ? 127 : code == 13 ? 126 : 0;
    b->follows = !diagnose_no_agent(agent, as_shell, b->text, sizeof b->text);
    if (b->follows && code == EXIT_NO_BOOTSTRAP)
        snprintf(
            b->text, sizeof b->text,
            "its agent got no input: srun waits until all nodes have connected to it");
    else if (b->follows)
        snprintf(b->text, sizeof b->text, "its agent has ended early: '%s'", fate);
    return true;
}

static bool blame(const char *line, const char *agent, struct blame *b)
{
    return blame_exit(line, agent, b) || blame_failure(line, b);
}

const struct transport transport_srun = {.name = "srun",
                                         .program = "srun",
                                         .source = "slurm",
                                         .at_once = true,
                                         .command = command,
                                         .environment = environment,
                                         .part = part,
                                         .blame = blame};
