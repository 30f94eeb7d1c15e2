/* worker/group/mpi/mpi.c - collectives by the MPI library that the job runs under
 *
 * The bootstrap uses MPI, too, so that neither a store nor MASTER_ADDR is needed.
 * Barriers and messages are ours: they detect failures and have deadlines. MPI reports
 * neither; a collective of MPI that others do not join ends at our deadline, and the
 * process then exits without MPI_Finalize, which would wait.
 */
#include "worker/group/backend.h"

#include "common/err.h"
#include "common/installed.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/group/bootstrap.h"
#include "worker/group/mpi/shim.h"
#include "worker/group/reduce.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mpi {
    void *comm;
    struct shim_op *under_way;
};

static const struct mpi_shim *shim;

/* ---- finding the one we run under ---- */

static const char *which(struct ddp_err *err)
{
    const char *asked = getenv("DDP_MPI");
    if (asked && (strcmp(asked, "openmpi") == 0 || strcmp(asked, "mpich") == 0))
        return asked;
    if (asked) {
        err_set(err, "DDP_MPI is '%s': 'openmpi' or 'mpich'", asked);
        return NULL;
    }
    if (getenv("OMPI_COMM_WORLD_SIZE") || (getenv("PMIX_RANK") && !getenv("PMI_FD")))
        return "openmpi";
    if (getenv("PMI_FD") || getenv("PMI_RANK") || getenv("PMI_PORT"))
        return "mpich";
    err_set(err, "this process has not been started as a rank of MPI: use mpirun, or say "
                 "DDP_MPI=openmpi or DDP_MPI=mpich");
    return NULL;
}

/* In DDP_MPI_DIR, beside our own library, or where plug-ins are. */
static void *open_shim(const char *mpi, struct ddp_err *err)
{
    const char *named = getenv("DDP_MPI_DIR");
    OWNED char *name = xasprintf("ddpgroup-%s.so", mpi);
    OWNED char *path = named ? xasprintf("%s/%s", named, name) : NULL;
    if (!path || access(path, R_OK) < 0) {
        free(path);
        path = installed_plugin((const void *)(uintptr_t)&open_shim, name);
    }
    /* global: Open MPI's own plugins look for its symbols */
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (path && !library)
        err_set(err, "the link to MPI '%s' cannot be loaded: %s", mpi, dlerror());
    else if (!path)
        err_set(err,
                "there is no link to MPI '%s' (%s): it is built where mpicc.%s is; "
                "DDP_MPI_DIR says where it lies",
                mpi, name, mpi);
    return library;
}

int mpi_begin(int *rank, int *size, struct ddp_err *err)
{
    if (!shim) {
        const char *mpi = which(err);
        void *library = mpi ? open_shim(mpi, err) : NULL;
        if (!library)
            return -1;
        mpi_shim_fn table = NULL;
        *(void **)&table = dlsym(library, MPI_SHIM_NAME);
        if (!table)
            return err_set(err, "ddpgroup-%s.so is of another version", mpi);
        shim = table(reduce_two, type_size);
    }
    return shim->begin(rank, size, err);
}

int bootstrap_mpi(struct bootstrap *m, struct ddp_err *err)
{
    return shim->gather_world(m->card, m->cards, sizeof *m->card, err);
}

/* ---- the backend ---- */

/* MPI_Comm_create_group(), which waits for all members. */
struct making {
    const int *ranks; /* owned; leaked when the call is given up */
    int n, rc;
    void *comm;
    struct ddp_err why;
};

static void call_make(void *copy)
{
    struct making *m = copy;
    m->rc = shim->comm_make(m->ranks, m->n, &m->comm, &m->why);
}

static int mpi_open(struct ddp_group *g, struct ddp_err *err)
{
    int n = g->layout.size, *ranks = xcalloc((size_t)n, sizeof *ranks);
    for (int i = 0; i < n; i++)
        ranks[i] = layout_world(&g->layout, i);
    struct mpi *m = g->foreign = xcalloc(1, sizeof *m);
    struct making making = {.ranks = ranks, .n = n};
    if (n == 1 || !shim->threads())
        call_make(&making);
    else if (group_call_foreign(g, call_make, &making, sizeof making,
                                "MPI_Comm_create_group",
                                "one may be in another call of MPI", err) < 0) {
        shim->give_up(); /* MPI is still in that call */
        return -1;
    }
    free(ranks);
    m->comm = making.comm;
    if (making.rc < 0) {
        *err = making.why;
        return group_failed(g, err);
    }
    return 0;
}

static void mpi_close(struct ddp_group *g)
{
    struct mpi *m = g->foreign;
    if (!m)
        return;
    if (g->broken || m->under_way)
        shim->give_up();
    if (m->comm)
        shim->comm_free(m->comm);
    free(m);
    g->foreign = NULL;
}

static int mpi_advance(struct ddp_group *g, struct coll *c, int *culprit,
                       struct ddp_err *err)
{
    struct mpi *m = g->foreign;
    int done = 0;
    *culprit = -1;
    if (c->state == COLL_NEW) {
        if (shim->start(m->comm, c, g->layout.rank, g->layout.size, &m->under_way, err) <
            0)
            return ADVANCE_ERROR;
        c->state = COLL_WORKS;
    }
    if (shim->test(m->under_way, &done, err) < 0)
        return ADVANCE_ERROR;
    if (!done)
        return ADVANCE_LATER;
    m->under_way = NULL;
    if (coll_reduces(c->kind))
        reduce_finish(c->recv, coll_receives(c, g->layout.rank, g->layout.size), c->type,
                      c->op, g->layout.size);
    return ADVANCE_DONE;
}

const struct backend backend_mpi = {
    .name = "mpi", .open = mpi_open, .close = mpi_close, .advance = mpi_advance};
