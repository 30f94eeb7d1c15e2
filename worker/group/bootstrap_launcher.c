/* worker/group/bootstrap_launcher.c - launcher://: no address is given
 *
 * Rank 0 listens at a free port, and the launcher's PMIx or PMI passes its address to
 * the others (bootstrap_pmix.c, bootstrap_pmi.c). A step of Slurm without PMI passes
 * nothing, but it has a number and a list of hosts that all tasks know: rank 0 is on the
 * first host, and the port follows from the number. The cards are then exchanged as for
 * tcp://.
 */
#include "worker/group/bootstrap.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Below the ephemeral ports, above the registered ones in common use. */
enum { STEP_PORT = 20000, STEP_PORTS = 12000 };

/* The protocols by which mpirun, Hydra, Flux and srun --mpi pass a text. */
static const struct {
    const char *name;
    const char *sign;         /* the environment variable that shows that it is there */
    bootstrap_share_fn share; /* NULL: not built in */
} protocols[] = {
    {"PMI", "PMI_FD", bootstrap_share_pmi},
#if HAVE_PMIX
    {"PMIx", "PMIX_NAMESPACE", bootstrap_share_pmix},
#else
    {"PMIx", "PMIX_NAMESPACE", NULL},
#endif
};

void bootstrap_key(const struct bootstrap *m, char key[32])
{
    snprintf(key, 32, "ddpmeet-%016llx",
             (unsigned long long)fnv1a(FNV1A, m->name, strlen(m->name)));
}

/* "node[001-004]": the first of them. */
static char *first_host(const char *list)
{
    SCOPED(strv_finish) struct strv names = {0};
    struct ddp_err err;
    return hostlist_expand(list, &names, &err) == 0 && names.n > 0 ? xstrdup(names.v[0])
                                                                   : NULL;
}

static bool has_step(void)
{
    return getenv("SLURM_STEP_NODELIST") && getenv("SLURM_STEP_ID") &&
           getenv("SLURM_JOB_ID");
}

static int meet_by_step(const struct bootstrap *m, struct ddp_err *err)
{
    long number = atol(getenv("SLURM_JOB_ID")) * 16 + atol(getenv("SLURM_STEP_ID"));
    const char *list = getenv("SLURM_STEP_NODELIST"), *here = getenv("SLURMD_NODENAME");
    OWNED char *host = first_host(list);
    if (!host)
        return err_set(err, "SLURM_STEP_NODELIST '%s' has no host", list);
    if (m->rank == 0 && here && strcmp(here, host) != 0)
        return err_set(err,
                       "rank 0 runs on %s, which is not the first host of this step "
                       "(%s): set MASTER_ADDR and MASTER_PORT, or DDP_MEETING",
                       here, list);
    OWNED char *word = xasprintf("%ld", number);
    return bootstrap_at(m, host, STEP_PORT + (int)((unsigned long)number % STEP_PORTS),
                        word, -1, err);
}

int bootstrap_launcher(struct bootstrap *m, struct ddp_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(protocols); i++) {
        if (!getenv(protocols[i].sign))
            continue;
        if (!protocols[i].share)
            return err_set(
                err,
                "the launcher offers %s, which is not built in here; set "
                "MASTER_ADDR and MASTER_PORT to rank 0's host and a port there",
                protocols[i].name);
        return bootstrap_by_value(m, protocols[i].share, protocols[i].name, err);
    }
    if (has_step())
        return meet_by_step(m, err);
    return err_set(
        err,
        "MASTER_ADDR is not set: rank %d of %d does not know where to meet the "
        "others; start under ddprun, or set MASTER_ADDR and MASTER_PORT",
        m->rank, m->size);
}
