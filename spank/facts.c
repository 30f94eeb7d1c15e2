/* spank/facts.c - see facts.h */
#include "spank/facts.h"

#include "common/err.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "common/number.h"
#include "launcher/alloc/sched.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *env_value(char *const *env, const char *name)
{
    size_t len = strlen(name);
    for (; env && *env; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=')
            return (*env)[len + 1] ? *env + len + 1 : NULL;
    }
    return NULL;
}

int step_port(uint32_t job, uint32_t step)
{
    /* concurrent steps of one job and of consecutive jobs need different ports: up to
     * STEPS steps each of about two hundred jobs have their own */
    enum { STEPS = 61 };
    return PORT_FIRST + (int)(((uint64_t)job * STEPS + step) % PORT_COUNT);
}

/* --- where rank 0 is ---------------------------------------------------------------- */

static char *lower(const char *name, size_t len)
{
    char *copy = xstrndup(name, len);
    for (char *p = copy; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return copy;
}

/* The first name in the host file of -m arbitrary; NULL: none. */
static char *first_in_file(const char *path)
{
    char line[300] = "";
    SCOPED(close_file) FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f) && line[strspn(line, " \t\r\n")] == '\0')
        line[0] = '\0';
    const char *start = line + strspn(line, " \t");
    size_t len = strcspn(start, " \t\r\n,*");
    return len > 0 ? lower(start, len) : NULL;
}

const char *step_hosts(char *const *env)
{
    const char *list = env_value(env, "SLURM_STEP_NODELIST");
    return list ? list : env_value(env, "SLURM_NODELIST");
}

static int node_names(char *const *env, struct strv *names, struct ddp_err *err)
{
    const char *list = step_hosts(env);
    if (!list)
        return err_set(err, "SLURM_STEP_NODELIST is not set");
    if (hostlist_expand(list, names, err) < 0)
        return err_prefix(err, "SLURM_STEP_NODELIST='%s'", list);
    return names->n > 0 ? 0 : err_set(err, "SLURM_STEP_NODELIST names no node");
}

char *step_master(char *const *env, struct ddp_err *err)
{
    const char *order = env_value(env, "SLURM_DISTRIBUTION");
    const char *file = env_value(env, "SLURM_HOSTFILE");
    char *name = NULL;
    if (file && order && strncmp(order, "arbitrary", 9) == 0)
        name = first_in_file(file);
    SCOPED(strv_finish) struct strv names = {0};
    if (!name && node_names(env, &names, err) == 0)
        name = lower(names.v[0], strlen(names.v[0]));
    return name;
}

/* --- ranks and sizes ---------------------------------------------------------------- */

static int number(char *const *env, const char *name, const char *other, int *out,
                  struct ddp_err *err)
{
    const char *text = env_value(env, name);
    if (!text && other)
        text = env_value(env, other);
    if (!text)
        return err_set(err, "%s is not set", name);
    return number_whole(text, 0, INT_MAX, out)
               ? 0
               : err_set(err, "%s='%s' is not a number", name, text);
}

/* The number of nodes that have a task of this local rank, and how many of them precede
 * ours. */
static int cross(char *const *env, struct rank_facts *f, struct ddp_err *err)
{
    static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
    const char *text = env_value(env, name);
    if (!text)
        return err_set(err, "%s is not set", name);
    OWNED int *counts = xcalloc((size_t)f->nnodes, sizeof *counts);
    TRY(sched_counts(name, text, counts, (size_t)f->nnodes, err));
    for (int i = 0; i < f->nnodes; i++) {
        bool has = counts[i] > f->local_rank;
        f->cross_size += has;
        f->cross_rank += has && i < f->node_rank;
    }
    if (f->node_rank < f->nnodes)
        f->local_size = counts[f->node_rank];
    return 0;
}

int step_facts(char *const *env, struct rank_facts *f, struct ddp_err *err)
{
    f->cross_rank = f->cross_size = 0;
    if (number(env, "SLURM_PROCID", NULL, &f->rank, err) < 0 ||
        number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", &f->size, err) < 0 ||
        number(env, "SLURM_LOCALID", NULL, &f->local_rank, err) < 0 ||
        number(env, "SLURM_NODEID", NULL, &f->node_rank, err) < 0 ||
        number(env, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", &f->nnodes, err) < 0)
        return -1;
    if (f->rank >= f->size || f->node_rank >= f->nnodes)
        return err_set(
            err,
            "task %d of %d on node %d of %d: the variables of this step are not "
            "all of one step (of a heterogeneous one, say)",
            f->rank, f->size, f->node_rank, f->nnodes);
    return cross(env, f, err);
}
