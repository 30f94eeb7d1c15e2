/* launcher/alloc/sge.c - the allocation of a Grid Engine job
 *
 * $PE_HOSTFILE: "host slots queue@host processors", separated by blanks or tabs, one line
 * per queue instance: a host may be listed twice, short or with its domain, and its slots
 * are added (sge_pe(5)). The first line is the master's. The meaning of a slot depends on
 * the site (a core, a hardware thread: 80 on a node of 4 GPUs); it is used on nodes
 * without GPUs only. ABCI has the host names in the file $SGE_JOB_HOSTLIST, too.
 */
#include "common/err.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

#include <stdlib.h>
#include <string.h>

static bool detect(const struct opts *opts)
{
    return (sched_env("PE_HOSTFILE") || sched_env("SGE_JOB_HOSTLIST")) &&
           sched_env("JOB_ID") && sched_env("SGE_ROOT");
}

/* "host slots ..." */
static int read_line(struct hostbook *book, const struct host_place *place, char *line,
                     struct ddp_err *err)
{
    return sched_add_pair(book, place, &line, err) < 0 ? -1 : 0;
}

/* A number of hosts that does not match the file: variables inherited from another job,
 * as in tasks of qrsh -V. */
static int check_number(const char *file, const struct alloc *a, struct ddp_err *err)
{
    const char *text = sched_env("NHOSTS");
    if (!text || strtoul(text, NULL, 10) == a->nnodes)
        return 0;
    return err_set(
        err,
        "NHOSTS=%s, but %s=%s names %zu host%s: variables of two jobs? -H names "
        "the hosts",
        SANITIZED(text), file, SANITIZED(sched_env(file)), a->nnodes,
        a->nnodes == 1 ? "" : "s");
}

static int read_sge(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    const char *path = sched_env("PE_HOSTFILE"), *list = sched_env("SGE_JOB_HOSTLIST");
    a->scheduler_owned = true;
    if (path)
        TRY(sched_file("PE_HOSTFILE", path, read_line, a, err));
    else
        TRY(sched_hostfile("SGE_JOB_HOSTLIST", list, a, err));
    return check_number(path ? "PE_HOSTFILE" : "SGE_JOB_HOSTLIST", a, err);
}

const struct alloc_source alloc_sge = {
    .name = "sge",
    .detect = detect,
    .read = read_sge,
    .job_var = "JOB_ID",
    .on_own_node = true,
    .slots_hint = "-pe NAME N of the job",
};
