/* spank/plugin.c - ddprun_spank.so: `srun --ddp ./train.py`
 *
 * A Slurm plugin (spank(8)): every task of a step gets the environment of a rank
 * (doc/contract.md), and the node of rank 0 runs the store. doc/spank.md describes
 * installation and use.
 *
 * The same object is loaded by srun, by sbatch and salloc, and by slurmstepd on each
 * node, where it runs as root between hooks. Two rules follow. Steps without --ddp, and
 * batch, extern and interactive steps, are not touched. And every hook returns success: a
 * failure in some of them makes Slurm drain the node for all users. Errors are reported
 * to the user instead.
 */
#include <stdint.h> /* spank.h needs it and does not include it */

#include "common/err.h"
#include "common/mem.h"
#include "spank/facts.h"
#include "spank/stored.h"

#include <limits.h>
#include <netinet/in.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

/* defined by SPANK_PLUGIN(); must be exported */
extern PUBLIC const char plugin_name[], plugin_type[];
extern PUBLIC const unsigned int plugin_version, spank_plugin_version;
SPANK_PLUGIN(ddprun, 1)

/* How many ports srun tries on its own node. */
enum { PORT_TRIES = 32 };

static bool wanted;       /* --ddp */
static bool is_open;      /* --ddp=open: the store admits every connection */
static bool store_failed; /* in slurmstepd of rank 0's node: no store */
static int store_port; /* there: the store's, if MASTER_PORT is the only task's; or 0 */
static char *stored_path; /* path of ddpstored */

static int on_option(int val, const char *how, int remote)
{
    wanted = true;
    /* Slurm passes an option without a value from sbatch to srun as "(null)" */
    bool none = !how || !*how || strcmp(how, "(null)") == 0;
    is_open = !none && strcmp(how, "open") == 0;
    if (none || is_open)
        return 0;
    slurm_error("ddprun: --ddp=%s: only --ddp and --ddp=open are known", how);
    return -1;
}

static struct spank_option ddp_option = {
    .name = (char[]){"ddp"},
    .arginfo = (char[]){"open"},
    .usage = (char[]){"give each task the environment of a rank of distributed training "
                      "(RANK, WORLD_SIZE, MASTER_ADDR, ...), and run its store; =open: "
                      "the store admits every client, not only the step's nodes"},
    .has_arg = 2,
    .cb = on_option,
};

/* False for batch, extern, interactive and other steps that srun has not made for a
 * program. */
static bool is_ordinary_step(spank_t sp, uint32_t *job, uint32_t *step)
{
    return spank_get_item(sp, S_JOB_ID, job) == ESPANK_SUCCESS &&
           spank_get_item(sp, S_JOB_STEPID, step) == ESPANK_SUCCESS &&
           *step <= SLURM_MAX_NORMAL_STEP_ID;
}

/* Each component of a heterogeneous step has its own job number; the variable has the
 * first component's on all. */
static void name_leader(const char *het_size, const char *job_id, uint32_t *job)
{
    if (het_size && job_id)
        *job = (uint32_t)strtoul(job_id, NULL, 10);
}

static char **job_env(spank_t sp)
{
    char **env = NULL;
    return spank_get_item(sp, S_JOB_ENV, &env) == ESPANK_SUCCESS ? env : NULL;
}

/* --- all contexts ------------------------------------------------------------------- */

extern PUBLIC int slurm_spank_init(spank_t sp, int argc, char *argv[])
{
    static const char key[] = "ddpstored=";
    stored_path = xstrdup(DDPSTORED_PATH);
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], key, strlen(key)) == 0) {
            free(stored_path);
            stored_path = xstrdup(argv[i] + strlen(key));
        } else {
            slurm_error("ddprun: '%s' in plugstack.conf is nothing it knows", argv[i]);
        }
    }
    spank_context_t context = spank_context();
    if ((context == S_CTX_LOCAL || context == S_CTX_REMOTE ||
         context == S_CTX_ALLOCATOR) &&
        spank_option_register(sp, &ddp_option) != ESPANK_SUCCESS)
        slurm_error("ddprun: cannot register --ddp");
    return 0;
}

/* --- srun, before the step starts --------------------------------------------------- */

static bool is_free(int port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0)
        return true;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool is = bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0;
    close(fd);
    return is;
}

/* Only srun reaches all nodes, through the environment of the tasks: it chooses the port.
 * If srun runs on the first node, as in a batch script, that port is free. MASTER_ADDR
 * and MASTER_PORT are kept if the user has set them, but not if a surrounding launcher
 * has. */
extern PUBLIC int slurm_spank_local_user_init(spank_t sp, int argc, char *argv[])
{
    uint32_t job, step;
    if (!wanted || !is_ordinary_step(sp, &job, &step))
        return 0;
    name_leader(getenv("SLURM_HET_SIZE"), getenv("SLURM_JOB_ID"), &job);
    if (getenv("TORCHELASTIC_RUN_ID")) {
        unsetenv("MASTER_ADDR");
        unsetenv("MASTER_PORT");
    }
    int first = step_port(job, step), port = first;
    for (int i = 0; i < PORT_TRIES && !is_free(port); i++)
        port = PORT_FIRST + (first - PORT_FIRST + i + 1) % PORT_COUNT;
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 0);
    return 0;
}

/* --- slurmstepd, before the tasks --------------------------------------------------- */

static int master_port(char *const *env, uint32_t job, uint32_t step)
{
    const char *text = env_value(env, "MASTER_PORT");
    int port = text ? atoi(text) : 0;
    return port > 0 && port < 65536 ? port : step_port(job, step);
}

static bool is_this_node(const char *name)
{
    char own[HOST_NAME_MAX + 1] = "";
    gethostname(own, sizeof own - 1);
    size_t n = strcspn(own, ".");
    return strcasecmp(name, own) == 0 ||
           (n == strcspn(name, ".") && strncasecmp(name, own, n) == 0);
}

/* Is this the node of rank 0? By its index in the step's list, as Slurm's node name may
 * differ from the host name; with -m arbitrary, by name. */
static bool has_rank0(spank_t sp, char *const *env)
{
    struct ddp_err err;
    uint32_t node = UINT32_MAX;
    const char *order = env_value(env, "SLURM_DISTRIBUTION");
    if (!env_value(env, "SLURM_HET_SIZE") &&
        (!order || strncmp(order, "arbitrary", 9) != 0) &&
        spank_get_item(sp, S_JOB_NODEID, &node) == ESPANK_SUCCESS)
        return node == 0;
    OWNED char *master = step_master(env, &err);
    return master && is_this_node(master);
}

extern PUBLIC int slurm_spank_user_init(spank_t sp, int argc, char *argv[])
{
    uint32_t job, step;
    struct ddp_err err;
    if (!wanted || !spank_remote(sp) || !is_ordinary_step(sp, &job, &step))
        return 0;
    char **env = job_env(sp);
    name_leader(env_value(env, "SLURM_HET_SIZE"), env_value(env, "SLURM_JOB_ID"), &job);
    if (!has_rank0(sp, env))
        return 0;
    int port = master_port(env, job, step);
    const char *hosts = step_hosts(env), *size = env_value(env, "SLURM_STEP_NUM_TASKS");
    bool separate = !is_open && size && strcmp(size, "1") == 0;
    OWNED char *allow = xstrdup(is_open ? NULL : hosts ? hosts : "localhost");
    int got = stored_start(stored_path, separate ? 0 : port, allow, &err);
    if (got > 0 && separate)
        store_port = got;
    store_failed = got < 0;
    if (store_failed && separate)
        slurm_error("ddprun: no store: %s; the task will create one at MASTER_PORT",
                    err.text);
    else if (store_failed)
        slurm_error("ddprun: no store on port %d: %s; rank 0 will create one; "
                    "MASTER_PORT chooses another port",
                    port, err.text);
    return 0;
}

/* --- slurmstepd, in each task ------------------------------------------------------- */

static void set_variable(const char *name, const char *value, bool is_default, void *arg)
{
    spank_setenv(arg, name, value, !is_default);
}

static int cpus_of_task(spank_t sp)
{
    uint32_t n = 0;
    return spank_get_item(sp, S_STEP_CPUS_PER_TASK, &n) == ESPANK_SUCCESS && n > 0
               ? (int)n
               : 1;
}

extern PUBLIC int slurm_spank_task_init(spank_t sp, int argc, char *argv[])
{
    uint32_t job, step, restarts = 0;
    struct ddp_err err;
    if (!wanted || !spank_remote(sp) || !is_ordinary_step(sp, &job, &step))
        return 0;
    char **env = job_env(sp);
    name_leader(env_value(env, "SLURM_HET_SIZE"), env_value(env, "SLURM_JOB_ID"), &job);
    struct rank_facts facts = {.rank_names = NAMES_OMPI | NAMES_SLURM};
    const char *own = env_value(env, "MASTER_ADDR"),
               *node = env_value(env, "SLURMD_NODENAME");
    OWNED char *master = own ? xstrdup(own) : step_master(env, &err);
    if (!master || step_facts(env, &facts, &err) < 0) {
        slurm_error("ddprun: --ddp does nothing for this task: %s", err.text);
        return 0;
    }
    OWNED char *id = xasprintf("slurm-%u.%u", job, step);
    spank_get_item(sp, S_SLURM_RESTART_COUNT, &restarts);
    facts.hostname = node ? node : master;
    facts.master_addr = master;
    facts.master_port = master_port(env, job, step);
    facts.job_id = id;
    facts.ncpus = cpus_of_task(sp);
    facts.restart_count = facts.max_restarts = (int)restarts;
    facts.store = store_failed ? STORE_RANK0 : STORE_LAUNCHER;
    facts.store_port = store_port;
    /* spank_setenv() replaces the strings that env points to */
    OWNED char *name = xstrdup(facts.hostname);
    facts.hostname = name;
    contract_each(&facts, set_variable, sp);
    return 0;
}

/* --- the end of the step ------------------------------------------------------------ */

/* The store's messages: a task may have failed because the store refused it. */
extern PUBLIC int slurm_spank_task_exit(spank_t sp, int argc, char *argv[])
{
    char text[1000], *save;
    if (stored_said(text, sizeof text)) {
        for (char *line = strtok_r(text, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save))
            slurm_error("%s", line);
    }
    return 0;
}

extern PUBLIC int slurm_spank_exit(spank_t sp, int argc, char *argv[])
{
    stored_stop();
    return 0;
}
