/* launcher/plugins/mpi/mpi_agent.c - services for MPI programs, on the nodes' side
 *
 * Two services: PMIx (Open MPI), by a process of its own (pmix_proc.h), and PMI-1 and
 * PMI-2 (MPICH and its derivatives), in the agent (pmi_server.h), over a descriptor that
 * every rank inherits. A rank that uses neither only gets some environment variables and
 * that descriptor. FENCE and PEER frames from above go to the service that they name.
 *
 * Whether a rank that exited with 0 has left MPI: the server reports that before it
 * answers the rank, but the exit may be reaped before the report is read. So the agent
 * asks the server (MEMBER_ASKED), whose answer comes after any such report.
 */
#include "launcher/agent/plugin.h"

#include "common/affinity.h"
#include "common/limit.h"
#include "common/mem.h"
#include "launcher/link/rankmap.h"
#include "launcher/plugins/mpi/mpi_kind.h"
#include "launcher/plugins/mpi/pmi_server.h"
#include "launcher/plugins/mpi/pmix_proc.h"
#include "launcher/plugins/plugins.h"
#include "launcher/transport/child.h"

#include <stdlib.h>
#include <string.h>

/* ms: how long a report of the PMIx server may still be in transit after the last rank
 * has exited without MPI */
enum { ABSENCE_MS = 1000 };

struct mpi_rank {
    bool joined;       /* is in MPI: has initialized it and not left */
    bool ever;         /* has been in MPI */
    bool exited, well; /* well: with status 0 */
    int64_t exited_ns; /* when */
};

struct mpi_node {
    struct agent *agent;         /* borrowed */
    struct mpi_service *service; /* owned: of this attempt; NULL before the first */
    char *mapping;               /* owned: PMI_process_mapping; NULL: none */
    struct strv map;             /* as in msg_serve, of an attempt; empty: not known */
    uint32_t attempt;            /* of the map */
};

struct mpi_service {
    struct agent *agent;           /* borrowed */
    const struct msg_job *job;     /* borrowed */
    const struct msg_share *share; /* borrowed */
    struct pmix_proc *pmix;        /* owned; NULL: PMIx is not served */
    struct pmi_server *pmi;        /* owned; NULL: PMI is not served */
    struct limit *absence;         /* owned */
    bool ending;                   /* the attempt is: a rank without MPI delays nobody */
    struct mpi_rank *ranks;        /* owned, by local rank */
    bool crowded;                  /* more ranks than CPUs */
    bool present;                  /* reported: some of them are in MPI */
    uint32_t never;                /* those that have never been in MPI */
};

/* --- reports to the parent ---------------------------------------------------------- */

/* A rank that is in MPI has exited with 0. */
static void report_left_open(struct mpi_service *w, uint32_t rank, int64_t at_ns)
{
    static const char text[] = "exited with status 0 without calling MPI_Finalize";
    agent_send(w->agent, MSG(abort, rank, 1, at_ns, msg_text(text)));
}

static void report_member(struct mpi_service *w, uint32_t local, enum member_state state)
{
    agent_send(w->agent, MSG(member, w->share->ranks[local].rank, state));
}

static void report_presence(struct mpi_service *w)
{
    uint32_t i = 0, n = w->share->nlocal;
    while (i < n && (!w->ranks[i].joined || w->ranks[i].exited))
        i++;
    if (w->present == (i < n))
        return;
    w->present = i < n;
    report_member(w, w->present ? i : 0, w->present ? MEMBER_JOINED : MEMBER_LEFT);
}

/* One rank that exited with 0 without MPI is enough: MPI ranks wait for all others. */
static void on_absence(void *arg)
{
    struct mpi_service *w = arg;
    uint32_t i = 0, n = w->share->nlocal;
    while (i < n && (!w->ranks[i].well || w->ranks[i].ever))
        i++;
    if (i < n)
        report_member(w, i, MEMBER_ABSENT);
}

static void on_membership(uint32_t local, bool joined, void *arg)
{
    struct mpi_service *w = arg;
    bool first = joined && !w->ranks[local].ever;
    w->ranks[local].joined = joined;
    w->ranks[local].ever |= joined;
    report_presence(w);
    if (first && --w->never == 0)
        report_member(w, local, MEMBER_ALL);
}

static void on_pmix_member(const struct msg_member *m, void *arg)
{
    struct mpi_service *w = arg;
    for (uint32_t i = 0; i < w->share->nlocal; i++) {
        struct mpi_rank *r = &w->ranks[i];
        if (w->share->ranks[i].rank != m->rank)
            continue;
        if (m->state != MEMBER_ASKED)
            on_membership(i, m->state == MEMBER_JOINED, w);
        else if (r->joined && r->exited)
            report_left_open(w, m->rank, r->exited_ns);
    }
}

/* --- the ranks ---------------------------------------------------------------------- */

static void mpi_rank_exited(void *state, uint32_t local, const struct msg_exit *how)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    struct mpi_rank *m = &w->ranks[local];
    bool open = w->pmi && pmi_server_exited(w->pmi, local);
    m->exited = true;
    m->exited_ns = how->at_ns;
    m->well = how->status == 0;
    report_presence(w);
    if (!m->well)
        return;
    if (!m->ever && !w->ending)
        limit_arm(w->absence, ABSENCE_MS);
    if (open)
        report_left_open(w, how->rank, how->at_ns);
    else if (m->joined && w->pmix)
        pmix_proc_ask(w->pmix, how->rank);
}

static int mpi_rank_fd(void *state, uint32_t local)
{
    const struct mpi_service *w = ((struct mpi_node *)state)->service;
    return w->pmi ? pmi_server_open(w->pmi, local) : -1;
}

/* More ranks than CPUs: a rank that waits by spinning would then delay the others. */
static bool crowded(const struct mpi_service *w)
{
    return (uint32_t)affinity_cpus_here() < w->share->nlocal;
}

static void mpi_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    const struct mpi_service *w = ((struct mpi_node *)state)->service;
    if (w->pmix) {
        pmix_proc_names(w->pmix, &facts->pmix_nspace, &facts->pmix_uri);
        facts->crowded = w->crowded;
    }
    if (w->pmi)
        facts->pmi_fd = CHILD_EXTRA_FD;
    facts->spawned = w->job->spawned;
}

struct seen {
    enum mpi_kind kind;
    char library[64];
};

static void *mpi_examine(const char *path, const struct elf *elf, const struct strv *env)
{
    struct seen *s = xcalloc(1, sizeof *s);
    s->kind = mpi_kind_of(path, elf, strv_env_get(env, "LD_LIBRARY_PATH"), s->library,
                          sizeof s->library);
    return s;
}

/* Fail for an MPI program whose ranks would not find each other; start PMIx if needed. */
static int mpi_program(void *state, const char *path, const void *seen,
                       struct ddp_err *err)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    const struct seen *file = seen;
    const struct msg_job *job = w->job;
    if (job->mpi == MPI_NONE || file->kind == MPI_UNSEEN)
        return 0;
    const char *name = job->apps.n > 0 ? path : job->argv.v[0];
    unsigned serves = (w->pmix ? MPI_PMIX : 0U) | (w->pmi ? MPI_PMI : 0U);
    if (mpi_kind_check(file->kind, name, file->library, serves, job->nranks, err) < 0)
        return -1;
    if (file->kind == MPI_WANTS_PMIX && w->pmix)
        pmix_proc_expect(w->pmix);
    return 0;
}

/* --- messages ----------------------------------------------------------------------- */

static int handle_frame(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    uint32_t service = f->type == MSG_PEER ? ((const struct msg_peer *)f->m)->service
                                           : ((const struct msg_fence *)f->m)->service;
    if (!w)
        return 0;
    if (service == SERVICE_PMI)
        return w->pmi ? pmi_server_on_frame(w->pmi, f, err) : 0;
    if (w->pmix)
        pmix_proc_forward(w->pmix, f);
    return 0;
}

/* For ranks that run: it starts no PMIx server. */
static int handle_answer(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    const struct msg_related *related = f->m;
    bool pmi = f->type == MSG_RELATED
                   ? related->ndata > 0 && related->data[0] == RELATED_PMI
                   : f->type == MSG_SPAWN_RESULT &&
                         ((const struct msg_spawn_result *)f->m)->service == SERVICE_PMI;
    if (w && w->pmi && pmi)
        return pmi_server_on_frame(w->pmi, f, err);
    if (w && w->pmix && !pmi)
        pmix_proc_pass(w->pmix, f);
    return 0;
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
    if (s->service && s->service->pmix)
        pmix_proc_send_map(s->service->pmix);
    return 0;
}

/* --- attempts ----------------------------------------------------------------------- */

/* Serves those of `job.mpi` that this build and this machine support. */
static struct mpi_service *service_create(const struct mpi_node *s)
{
    struct agent *a = s->agent;
    const struct msg_job *job = &a->job;
    const struct msg_share *share = &a->share;
    struct mpi_service *w = xcalloc(1, sizeof *w);
    *w = (struct mpi_service){
        .agent = a, .job = job, .share = share, .never = share->nlocal};
    w->crowded = crowded(w);
    w->ranks = xcalloc(share->nlocal, sizeof *w->ranks);
    w->absence = limit_create(a->loop, on_absence, w);
    if (job->mpi & MPI_PMIX)
        w->pmix = pmix_proc_create(a, &s->map, on_pmix_member, w);
    /* PMI_FD means nothing without PMI_RANK */
    if (job->mpi & MPI_PMI && job->rank_names & NAMES_PMI)
        w->pmi = pmi_server_create(a, s->mapping, on_membership, w);
    return w;
}

static void service_destroy(struct mpi_service *w)
{
    if (!w)
        return;
    limit_destroy(w->absence);
    pmix_proc_destroy(w->pmix);
    pmi_server_destroy(w->pmi);
    free(w->ranks);
    free(w);
}

/* With one node neither the map nor PMI_process_mapping needs a message. */
static void map_one_node(struct mpi_node *s, const struct msg_share *share)
{
    OWNED int *ranks = xcalloc(share->nlocal, sizeof *ranks);
    free(s->mapping);
    s->mapping = xasprintf("(vector,(0,1,%u))", share->nlocal);
    for (uint32_t i = 0; i < share->nlocal; i++)
        ranks[i] = (int)share->ranks[i].rank;
    rankmap_push(&s->map, share->host, ranks, (int)share->nlocal);
}

static int mpi_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct mpi_node *s = state;
    service_destroy(s->service);
    if (s->attempt != job->attempt)
        strv_finish(&s->map); /* nodes may have been replaced */
    if (job->nnodes == 1 && s->map.n == 0)
        map_one_node(s, &s->agent->share);
    s->attempt = job->attempt;
    s->service = service_create(s);
    return 0;
}

static void mpi_ranks_over(void *state)
{
    pmix_proc_stop(((struct mpi_node *)state)->service->pmix);
}

/* A later report that a rank was never in MPI would use the share of the next attempt, in
 * which the launcher expects no report of this one. */
static void mpi_stop(void *state, bool again)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    if (!w)
        return;
    w->ending = true;
    limit_stop(w->absence);
}

/* The PMIx server cleans up after the ranks, then exits by itself. */
static bool mpi_spares(const void *state, pid_t pid)
{
    const struct mpi_service *w = ((const struct mpi_node *)state)->service;
    pid_t server = w && w->pmix ? pmix_proc_pid(w->pmix) : 0;
    return server > 0 && (pid == 0 || server == pid);
}

static bool mpi_busy(const void *state)
{
    return mpi_spares(state, 0);
}

static void mpi_fini(void *state)
{
    struct mpi_node *s = state;
    service_destroy(s->service);
    strv_finish(&s->map);
    free(s->mapping);
}

static const struct agent_message messages[] = {
    {MSG_FENCE, handle_frame},
    {MSG_PEER, handle_frame},
    {MSG_SPAWN_RESULT, handle_answer},
    {MSG_RELATED, handle_answer},
    {MSG_SPAWN_ENDED, handle_answer},
    {MSG_PMI_MAPPING, handle_mapping},
    {MSG_MAP, handle_map},
    {0},
};

const struct agent_plugin mpi_agent = {
    .name = "mpi",
    .state_size = sizeof(struct mpi_node),
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
