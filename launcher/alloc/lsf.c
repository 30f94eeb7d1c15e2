/* launcher/alloc/lsf.c - the allocation of an LSF job
 *
 * $LSB_MCPU_HOSTS is "host1 4 host2 4"; a host that serves two parts of a compound
 * request is listed twice, and its slots are added. If that is too long to be set,
 * $LSB_DJOB_HOSTFILE is used: one line with the host per slot.
 */
#include "common/err.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"

#include <string.h>

static bool detect(const struct opts *opts)
{
    return sched_env("LSB_JOBID") &&
           (sched_env("LSB_MCPU_HOSTS") || sched_env("LSB_DJOB_HOSTFILE"));
}

static int read_pairs(struct hostbook *book, const struct host_place *place, char *line,
                      struct ddp_err *err)
{
    int rc;
    while ((rc = sched_add_pair(book, place, &line, err)) > 0)
        ;
    return rc;
}

static int read_lsf(const struct opts *opts, struct alloc *a, struct ddp_err *err)
{
    const char *pairs = sched_env("LSB_MCPU_HOSTS");
    a->scheduler_owned = true;
    if (pairs) {
        TRY(sched_variable("LSB_MCPU_HOSTS", pairs, read_pairs, a, err));
        sched_count("LSB_MCPU_HOSTS", "slot", a);
        return 0;
    }
    return sched_hostfile("LSB_DJOB_HOSTFILE", sched_env("LSB_DJOB_HOSTFILE"), a, err);
}

const struct alloc_source alloc_lsf = {
    .name = "lsf",
    .detect = detect,
    .read = read_lsf,
    .job_var = "LSB_JOBID",
    .on_own_node = true,
    .slots_hint = "-n N of the job",
};
