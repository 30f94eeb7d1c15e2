/* worker/group/bootstrap_launcher.c - launcher://: no address is given
 *
 * Rank 0 listens at a free port, and the launcher's PMI or PMIx (bootstrap_pmix.c) passes
 * its address to the others. A step of Slurm without them passes nothing, but it has a
 * number and a list of hosts that all tasks know: rank 0 is on the first host, and the
 * port follows from the number. The cards are then exchanged as for tcp://.
 */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/fnv.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "common/pmi_client.h"
#include "common/scoped.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void bootstrap_key(const struct bootstrap *m, char key[32])
{
    snprintf(key, 32, "ddpmeet-%016llx",
             (unsigned long long)fnv1a(FNV1A, m->name, strlen(m->name)));
}

/* ---- PMI-1, on the descriptor PMI_FD ----
 *
 * Finalize is sent at the end, not in a forked child, and only if the descriptor is still
 * the same socket: MPI may have closed it. That is after all atexit() functions, as one
 * of them may be MPI's end (mpi/shim.c), which still needs PMI. */

enum { LINE = PMI_CLIENT_LINE, BYE_MS = 2000 };

static struct {
    int fd;
    dev_t dev;
    ino_t ino;       /* of the socket that was there */
    pid_t pid;       /* of the process that has joined; 0: none */
    char name[LINE]; /* of the store of keys */
} pmi;

static bool pmi_is_there(void)
{
    struct stat st;
    return fstat(pmi.fd, &st) == 0 && st.st_dev == pmi.dev && st.st_ino == pmi.ino;
}

__attribute__((destructor)) static void pmi_leave(void)
{
    char line[LINE];
    int64_t deadline_ms = now_ms() + BYE_MS;
    if (pmi.pid == getpid() && pmi_is_there())
        pmi_client_ask(pmi.fd, "cmd=finalize\n", "finalize_ack", line, &deadline_ms,
                       NULL);
}

static int pmi_join(int64_t *deadline_ms, struct ddp_err *err)
{
    struct stat st;
    const char *text = getenv("PMI_FD");
    pmi.fd = text ? atoi(text) : -1;
    if (pmi.fd < 3 || fstat(pmi.fd, &st) < 0)
        return err_set(err, "PMI_FD is '%s', but that descriptor is closed",
                       text ? text : "");
    pmi.dev = st.st_dev;
    pmi.ino = st.st_ino;
    TRY(pmi_client_begin(pmi.fd, pmi.name, deadline_ms, err));
    pmi.pid = getpid();
    return 0;
}

static int share_by_pmi(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                        struct ddp_err *err)
{
    char text[LINE + 512], line[LINE], key[32];
    const char *world = getenv("PMI_SIZE");
    if (world && atoi(world) != m->size)
        return err_set(err, "PMI_SIZE is %s, but the group is to have %d ranks", world,
                       m->size);
    if (!pmi.pid && pmi_join(&m->deadline_ms, err) < 0)
        return -1;
    bootstrap_key(m, key);
    snprintf(text, sizeof text, "cmd=put kvsname=%s key=%s value=%s\n", pmi.name, key,
             value);
    if (m->rank == 0 &&
        pmi_client_ask(pmi.fd, text, "put_result", line, &m->deadline_ms, err) < 0)
        return -1;
    TRY(pmi_client_ask(pmi.fd, "cmd=barrier_in\n", "barrier_out", line, &m->deadline_ms,
                       err));
    snprintf(text, sizeof text, "cmd=get kvsname=%s key=%s\n", pmi.name, key);
    TRY(pmi_client_ask(pmi.fd, text, "get_result", line, &m->deadline_ms, err));
    const char *got = strstr(line, " value=");
    if (!got || strlen(got + 7) >= BOOTSTRAP_VALUE)
        return err_set(err, "the launcher's PMI does not give what rank 0 has put");
    snprintf(value, BOOTSTRAP_VALUE, "%s", got + 7);
    return 0;
}

/* ---- a step of Slurm ---- */

/* Below the ephemeral ports, above the registered ones in common use. */
enum { STEP_PORT = 20000, STEP_PORTS = 12000 };

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

/* ---- which of them ---- */

/* The protocols by which mpirun, Hydra, Flux and srun --mpi pass a text. */
static const struct {
    const char *name;
    const char *sign;         /* the environment variable that shows that it is there */
    bootstrap_share_fn share; /* NULL: not built in */
} protocols[] = {
    {"PMI", "PMI_FD", share_by_pmi},
#if HAVE_PMIX
    {"PMIx", "PMIX_NAMESPACE", bootstrap_share_pmix},
#else
    {"PMIx", "PMIX_NAMESPACE", NULL},
#endif
};

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
