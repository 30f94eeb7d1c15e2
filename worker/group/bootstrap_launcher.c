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

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Below the ephemeral ports, above the registered ones in common use. */
enum { STEP_PORT = 20000, STEP_PORTS = 12000 };

/* The protocols by which mpirun, Hydra, Flux and srun --mpi pass a text. */
struct protocol {
    const char *name;
    const char *sign; /* the environment variable that shows that it is there */
    int (*share)(const struct bootstrap *m, const char *key, char value[BOOTSTRAP_VALUE],
                 struct ddp_err *err);
};

static const struct protocol protocols[] = {
    {"PMI", "PMI_FD", bootstrap_share_pmi},
    {"PMIx", "PMIX_NAMESPACE", bootstrap_share_pmix},
};

static int share_by_protocol(const struct protocol *o, const struct bootstrap *m,
                             const struct card *card, struct card *cards,
                             struct ddp_err *err)
{
    char value[BOOTSTRAP_VALUE] = "", key[32];
    int listener = -1;
    /* names may have any characters, keys may not */
    snprintf(key, sizeof key, "ddpmeet-%016llx",
             (unsigned long long)fnv1a(FNV1A, m->name, strlen(m->name)));
    if (m->rank == 0 && (listener = bootstrap_listen(card, value, err)) < 0)
        return -1;
    int rc = o->share(m, key, value, err);
    if (rc == 0)
        rc = bootstrap_at(m, listener, value, o->name, card, cards, err);
    if (listener >= 0)
        close(listener);
    return rc;
}

/* "node[001-004]": the first of them. */
static char *first_host(const char *list)
{
    struct strv names = {0};
    struct ddp_err err;
    char *first = NULL;
    if (hostlist_expand(list, &names, &err) == 0 && names.n > 0)
        first = xstrdup(names.v[0]);
    strv_finish(&names);
    return first;
}

static bool has_step(void)
{
    return getenv("SLURM_STEP_NODELIST") && getenv("SLURM_STEP_ID") &&
           getenv("SLURM_JOB_ID");
}

static int share_by_step(const struct bootstrap *m, const struct card *card,
                         struct card *cards, struct ddp_err *err)
{
    long number = atol(getenv("SLURM_JOB_ID")) * 16 + atol(getenv("SLURM_STEP_ID"));
    const char *list = getenv("SLURM_STEP_NODELIST"), *here = getenv("SLURMD_NODENAME");
    char *host = first_host(list);
    int rc = host ? 0 : err_set(err, "SLURM_STEP_NODELIST '%s' has no host", list);
    if (rc == 0 && m->rank == 0 && here && strcmp(here, host) != 0)
        rc = err_set(err,
                     "rank 0 runs on %s, which is not the first host of this step "
                     "(%s): set MASTER_ADDR and MASTER_PORT, or DDP_MEETING",
                     here, list);
    if (rc == 0) {
        struct bootstrap tcp = *m;
        tcp.port = STEP_PORT + (int)((unsigned long)number % STEP_PORTS);
        char *place = xasprintf("%s:%d", host, tcp.port);
        char *name = xasprintf("%ld/%s", number, m->name);
        snprintf(tcp.addr, sizeof tcp.addr, "%s", host);
        tcp.place = place;
        tcp.name = name;
        rc = bootstrap_tcp(&tcp, card, cards, err);
        free(name);
        free(place);
    }
    free(host);
    return rc;
}

int bootstrap_launcher(const struct bootstrap *m, const struct card *card,
                       struct card *cards, struct ddp_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(protocols); i++) {
        if (getenv(protocols[i].sign))
            return share_by_protocol(&protocols[i], m, card, cards, err);
    }
    if (has_step())
        return share_by_step(m, card, cards, err);
    return err_set(
        err,
        "MASTER_ADDR is not set: rank %d of %d does not know where to meet the "
        "others; start under ddprun, or give the address of a ddpstored",
        m->rank, m->size);
}
