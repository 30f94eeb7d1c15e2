/* launcher/plugins/mpi/mpi_agent.c - services for MPI programs, on the nodes' side */
#include "common/mem.h"
#include "launcher/agent/plugin.h"
#include "launcher/link/rankmap.h"
#include "launcher/plugins/mpi/mpi_kind.h"
#include "launcher/plugins/mpi/mpi_service.h"
#include "launcher/plugins/plugins.h"

#include <stdlib.h>

struct mpi_node {
    struct agent *agent;         /* borrowed */
    struct mpi_service *service; /* owned: of this attempt; NULL before the first */
    char *mapping;               /* owned: PMI_process_mapping; NULL: none */
    struct strv map;             /* of an attempt; empty: none */
    uint32_t attempt;            /* of the map */
};

/* With one node the map needs no message. */
static void map_one_node(struct mpi_node *s, const struct msg_share *share)
{
    int *ranks = xcalloc(share->nlocal, sizeof *ranks);
    for (uint32_t i = 0; i < share->nlocal; i++)
        ranks[i] = (int)share->ranks[i].rank;
    rankmap_push(&s->map, share->host, ranks, (int)share->nlocal);
    free(ranks);
}

static int mpi_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct mpi_node *s = state;
    mpi_service_destroy(s->service);
    if (s->attempt != job->attempt)
        strv_finish(&s->map); /* nodes may have been replaced */
    if (job->nnodes == 1 && s->map.n == 0)
        map_one_node(s, &s->agent->share);
    s->attempt = job->attempt;
    s->service = mpi_service_create(s->agent, s->mapping, &s->map);
    return 0;
}

struct seen {
    enum mpi_kind kind;
    char library[64];
};

static void *mpi_examine(const char *path, const struct strv *env)
{
    struct seen *s = xcalloc(1, sizeof *s);
    s->kind = mpi_kind_of(path, strv_env_get(env, "LD_LIBRARY_PATH"), s->library,
                          sizeof s->library);
    return s;
}

/* Fail for an MPI program whose ranks would not find each other; start PMIx if needed. */
static int mpi_program(void *state, const char *path, const void *seen,
                       struct ddp_err *err)
{
    struct mpi_node *s = state;
    const struct seen *file = seen;
    const struct msg_job *job = &s->agent->job;
    if (job->mpi == MPI_NONE || file->kind == MPI_UNSEEN)
        return 0;
    const char *name = job->apps.n > 0 ? path : job->argv.v[0];
    if (mpi_kind_check(file->kind, name, file->library, mpi_service_serves(s->service),
                       job->nranks, err) < 0)
        return -1;
    if (file->kind == MPI_WANTS_PMIX)
        mpi_service_expect(s->service);
    return 0;
}

static void mpi_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    mpi_service_facts(((struct mpi_node *)state)->service, facts);
}

static int mpi_rank_fd(void *state, uint32_t local)
{
    return mpi_service_open(((struct mpi_node *)state)->service, local);
}

static void mpi_rank_exited(void *state, uint32_t local, const struct msg_exit *how)
{
    mpi_service_exited(((struct mpi_node *)state)->service, local, how);
}

static void mpi_ranks_over(void *state)
{
    mpi_service_stop(((struct mpi_node *)state)->service);
}

static void mpi_stop(void *state, bool again)
{
    struct mpi_node *s = state;
    if (s->service)
        mpi_service_ending(s->service);
}

static bool mpi_busy(const void *state)
{
    const struct mpi_node *s = state;
    return s->service && mpi_service_has_server(s->service);
}

/* The PMIx server cleans up after the ranks, then exits by itself. */
static bool mpi_spares(const void *state, pid_t pid)
{
    const struct mpi_node *s = state;
    return s->service && mpi_service_is_server(s->service, pid);
}

static int handle_frame(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_node *s = state;
    return s->service ? mpi_service_on_frame(s->service, f, err) : 0;
}

static int handle_mapping(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_node *s = state;
    struct msg_pmi_mapping *m = f->m;
    free(s->mapping);
    s->mapping = msg_take(&m->value);
    return 0;
}

static int handle_map(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_node *s = state;
    const struct msg_map *m = f->m;
    strv_finish(&s->map);
    s->attempt = m->attempt;
    if (rankmap_unpack(m->data, m->ndata, m->size, &s->map, err) < 0)
        return -1;
    if (s->service)
        mpi_service_mapped(s->service);
    return 0;
}

static int mpi_init(struct agent *a, void **state, struct ddp_err *err)
{
    struct mpi_node *s = xcalloc(1, sizeof *s);
    s->agent = a;
    *state = s;
    return 0;
}

static void mpi_fini(void *state)
{
    struct mpi_node *s = state;
    mpi_service_destroy(s->service);
    strv_finish(&s->map);
    free(s->mapping);
    free(s);
}

static const struct agent_message messages[] = {
    {MSG_FENCE, handle_frame},
    {MSG_PEER, handle_frame},
    {MSG_PMI_MAPPING, handle_mapping},
    {MSG_MAP, handle_map},
    {0},
};

const struct agent_plugin mpi_agent = {
    .name = "mpi",
    .init = mpi_init,
    .fini = mpi_fini,
    .prepare = mpi_prepare,
    .examine = mpi_examine,
    .program = mpi_program,
    .rank_facts = mpi_rank_facts,
    .rank_fd = mpi_rank_fd,
    .rank_exited = mpi_rank_exited,
    .ranks_over = mpi_ranks_over,
    .stop = mpi_stop,
    .busy = mpi_busy,
    .spares = mpi_spares,
    .messages = messages,
};
