/* launcher/plugins/mpi/mpi_job.c - services for MPI programs, on the launcher's side
 *
 * MPI programs start by exchanging their addresses. Each agent sends the data of its
 * ranks (FENCE); when the last participating node has arrived, all of them get the
 * concatenated data, once per link. The launcher does not parse it. PEER goes from one
 * node to another. ABORT is a rank's request to end the job.
 *
 * MPI_Init waits for all ranks of the job. A rank that exits with status 0 without
 * calling it is not a failure by itself, but the other ranks would wait forever. mpirun
 * ends such a job, too. A rank that only queries PMIx counts as in MPI while it is
 * connected: hence ABSENT_MS before the job is ended. One that runs, and has not called
 * MPI_Init by --hang-after, is reported as the cause of a hang.
 */
#define LOG_SUBSYS "mpi"
#include "common/duration.h"
#include "common/err.h"
#include "common/idset.h"
#include "common/limit.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/job/events.h"
#include "launcher/job/plugin.h"
#include "launcher/link/rankmap.h"
#include "launcher/plugins/mpi/pmi_wire.h"
#include "launcher/plugins/plugins.h"
#include "launcher/transport/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

enum { ABSENT_MS = 2000 };

enum part { OUTSIDE, AWAITED, ARRIVED }; /* of a node in a fence */

struct fence {
    uint8_t *key; /* owned: the frame's bytes before the status, which identify it */
    size_t nkey;
    int32_t status;
    enum msg_service service;
    struct pack data; /* of the nodes that have arrived */
    uint32_t missing; /* nodes that have not arrived */
    uint8_t *nodes;   /* owned: enum part of each, by node rank */
    struct fence *prev, *next;
};

struct mpi_job {
    struct job *job;      /* borrowed */
    struct fence *fences; /* owned: those that nodes wait in */
    uint32_t *in_mpi; /* owned, by node: 1 + one of its ranks that is in MPI; 0: none */
    uint32_t absent;  /* 1 + a rank that never called MPI_Init; 0: none */
    bool *all;        /* owned, by node: all its ranks have been in MPI */
    int64_t
        since_ms; /* when ranks began to wait for others in MPI_Init; 0: they do not */
    bool mapped;  /* in this attempt all nodes have got the map */
    bool limited; /* `limit` is armed */
    struct limit *limit; /* owned: for ranks in MPI to leave, if one was never there */
};

/* --- data between nodes ------------------------------------------------------------- */

static unsigned node_of_place(const struct job *j, uint32_t place)
{
    return (unsigned)(j->plan->nodes[place].host - j->alloc->nodes);
}

static void fence_free(struct fence *m)
{
    pack_finish(&m->data);
    free(m->key);
    free(m->nodes);
    free(m);
}

static void drop_fences(struct mpi_job *s)
{
    struct fence *m, *next;
    DL_FOREACH_SAFE (s->fences, m, next) {
        DL_DELETE(s->fences, m);
        fence_free(m);
    }
}

static struct fence *fence_find(struct mpi_job *s, const struct frame *f,
                                const struct msg_fence *m)
{
    size_t nkey = f->size - m->ndata - sizeof m->status;
    struct fence *at;
    DL_FOREACH (s->fences, at) {
        if (at->nkey == nkey && memcmp(at->key, f->body, nkey) == 0)
            return at;
    }
    at = xcalloc(1, sizeof *at);
    at->key = xmemdup(f->body, nkey);
    at->nkey = nkey;
    at->missing = m->nnodes > 0 ? m->nnodes : (uint32_t)s->job->plan->nnodes;
    at->service = (enum msg_service)m->service;
    at->nodes = xcalloc((size_t)s->job->plan->nnodes, 1);
    for (uint32_t i = 0; i < at->missing; i++)
        at->nodes[m->nnodes > 0 ? m->nodes[i] : i] = AWAITED;
    DL_APPEND(s->fences, at);
    return at;
}

/* All nodes have arrived: send the data to each. */
static void fence_complete(struct mpi_job *s, struct fence *at, const struct msg_fence *m)
{
    struct job *j = s->job;
    struct msg_fence all = *m;
    size_t size = at->nkey + sizeof at->status + at->data.n;
    all.status = at->status;
    all.data = at->data.p;
    all.ndata = (uint32_t)at->data.n;
    if (size > FENCE_MAX)
        job_fail_text(j, CAUSE_CANNOT, EXIT_CANNOT_START,
                      xasprintf("the ranks exchange %zu MiB in one fence; the limit is "
                                "%d MiB",
                                size >> 20, FENCE_MAX >> 20));
    else if (m->nnodes == 0)
        job_send(j, NODE_ALL, MSG_FENCE, &all);
    for (uint32_t i = 0; i < m->nnodes && size <= FENCE_MAX; i++)
        job_send(j, node_of_place(j, m->nodes[i]), MSG_FENCE, &all);
    DL_DELETE(s->fences, at);
    fence_free(at);
}

static int handle_fence(void *state, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct mpi_job *s = state;
    struct job *j = s->job;
    const struct msg_fence *m = f->m;
    int place = j->nodes[node].place;
    bool invited = m->nnodes == 0;
    for (uint32_t i = 0; i < m->nnodes; i++) {
        invited |= m->nodes[i] == (uint32_t)place;
        if (!j->plan || m->nodes[i] >= (uint32_t)j->plan->nnodes)
            return err_set(err, "a fence with an unknown node");
    }
    if (place < 0 || !invited)
        return err_set(err, "a fence of other nodes");
    struct fence *at = fence_find(s, f, m);
    if (at->nodes[place] == ARRIVED)
        return err_set(err, "it joined the same fence twice");
    at->nodes[place] = ARRIVED;
    at->status = at->status ? at->status : m->status;
    pack_bytes(&at->data, m->data, m->ndata);
    log_trace("fence: %zu bytes so far, waiting for %u nodes", at->data.n,
              at->missing - 1);
    if (--at->missing == 0)
        fence_complete(s, at, m);
    return 0;
}

static int handle_peer(void *state, unsigned node, const struct frame *f,
                       struct ddp_err *err)
{
    struct job *j = ((struct mpi_job *)state)->job;
    struct msg_peer *m = f->m;
    if (!j->plan || m->node >= (uint32_t)j->plan->nnodes || j->nodes[node].place < 0)
        return err_set(err, "a peer message for an unknown node");
    unsigned to = node_of_place(j, m->node);
    m->node = (uint32_t)j->nodes[node].place;
    job_send(j, to, MSG_PEER, m);
    return 0;
}

static int handle_abort(void *state, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct job *j = ((struct mpi_job *)state)->job;
    struct msg_abort *m = f->m;
    if (!job_rank_is_of(j, m->rank, node))
        return err_set(err, "an abort of another node's rank");
    int code = m->code & 0xff;
    job_fail(j, (struct cause){.kind = CAUSE_ABORT,
                               .rank = (int)m->rank,
                               .code = code ? code : 1,
                               .at_ns = m->at_ns - j->nodes[node].ahead_ns,
                               .text = msg_take(&m->text)});
    return 0;
}

/* --- ranks that never enter MPI ----------------------------------------------------- */

/* 1 + a rank that is in MPI; 0: none. */
static uint32_t rank_in_mpi(const struct mpi_job *s)
{
    for (unsigned i = 0; i < s->job->alloc->nnodes; i++) {
        if (s->in_mpi[i] && job_node_connected(&s->job->nodes[i]))
            return s->in_mpi[i];
    }
    return 0;
}

static void on_limit(void *arg)
{
    struct mpi_job *s = arg;
    struct job *j = s->job;
    s->limited = false;
    uint32_t waits = s->absent ? rank_in_mpi(s) : 0;
    if (!waits || j->state != JOB_RUNNING)
        return;
    job_fail(j, (struct cause){
                    .kind = CAUSE_ABORT,
                    .rank = (int)s->absent - 1,
                    .code = 1,
                    .at_ns = j->ranks[s->absent - 1].at_ns,
                    .text = xasprintf("exited with status 0 without calling MPI_Init, in "
                                      "which rank %u waits for it",
                                      waits - 1)});
}

/* Nodes, by place, that are AWAITED as not all of their ranks have been in MPI; their
 * number. */
static unsigned find_awaited(const struct mpi_job *s, uint8_t *nodes)
{
    const struct job *j = s->job;
    unsigned n = 0;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (s->all[i] || !job_node_takes_part(&j->nodes[i]))
            continue;
        nodes[j->nodes[i].place] = AWAITED;
        n++;
    }
    return n;
}

static void note_all(struct mpi_job *s, unsigned node)
{
    OWNED uint8_t *nodes = xcalloc((size_t)s->job->plan->nnodes, 1);
    s->all[node] = true;
    if (find_awaited(s, nodes) == 0)
        job_ranks_in_mpi(s->job);
}

/* The wait for others begins with the first rank that is in MPI. */
static void note_presence(struct mpi_job *s, unsigned node, const struct msg_member *m)
{
    bool alone = !rank_in_mpi(s);
    s->in_mpi[node] = m->state == MEMBER_JOINED ? 1 + m->rank : 0;
    if (s->in_mpi[node] && (alone || !s->since_ms))
        s->since_ms = now_ms();
}

static int handle_member(void *state, unsigned node, const struct frame *f,
                         struct ddp_err *err)
{
    struct mpi_job *s = state;
    const struct msg_member *m = f->m;
    if (!job_rank_is_of(s->job, m->rank, node))
        return err_set(err, "the MPI state of another node's rank");
    if (m->state == MEMBER_ABSENT)
        s->absent = 1 + m->rank;
    else if (m->state == MEMBER_ALL)
        note_all(s, node);
    else
        note_presence(s, node, m);
    if (s->absent && rank_in_mpi(s) && !s->limited) {
        log_debug("rank %u has ended without MPI_Init", s->absent - 1);
        s->limited = true;
        limit_arm(s->limit, ABSENT_MS);
    }
    return 0;
}

/* --- for hang reports --------------------------------------------------------------- */

/* "ranks 0-1 on node1" and so on, of the nodes, by place, that have this part. */
static unsigned print_nodes(const struct mpi_job *s, const uint8_t *nodes, enum part part,
                            json_t *ranks, FILE *f)
{
    const struct plan *p = s->job->plan;
    unsigned n = 0;
    for (int i = 0; i < p->nnodes; i++) {
        const struct plan_node *node = &p->nodes[i];
        SCOPED(idset_finish) struct idset set = {0};
        if (nodes[i] != part)
            continue;
        for (int r = 0; r < node->nlocal; r++) {
            idset_add(&set, node->ranks[r], node->ranks[r]);
            if (ranks)
                json_array_append_new(ranks, json_integer(node->ranks[r]));
        }
        OWNED char *text = idset_text(&set);
        fprintf(f, "%s%s %s on %s", n++ ? ", " : "", node->nlocal > 1 ? "ranks" : "rank",
                text, node->host->name);
        n += node->nlocal > 1;
    }
    return n;
}

/* Others wait in MPI_Init, or in MPI_Comm_spawn. */
static void add_init(const struct mpi_job *s, json_t *list)
{
    uint32_t waits = rank_in_mpi(s);
    OWNED uint8_t *nodes = xcalloc((size_t)s->job->plan->nnodes, 1);
    OWNED char *text = NULL;
    size_t size;
    if (!s->since_ms || (!waits && !s->job->opts->spawn_waits) ||
        find_awaited(s, nodes) == 0)
        return;
    json_t *ranks = json_array();
    FILE *f = xmemstream(&text, &size);
    if (waits)
        fprintf(f, "rank %u waits in MPI_Init; ", waits - 1);
    else
        fputs("the rank that has spawned this job waits in MPI_Comm_spawn; ", f);
    unsigned n = print_nodes(s, nodes, AWAITED, ranks, f);
    fprintf(f, n == 1 ? " has not called %s" : " have not all called %s",
            waits ? "it" : "MPI_Init");
    xmemclose(f);
    json_array_append_new(list,
                          json_pack("{s:o, s:o, s:I}", "text", event_text(text), "ranks",
                                    ranks, "hang_ms", now_ms() - s->since_ms));
}

/* A node arrives when all of its ranks in the fence have. */
static void mpi_waits(void *state, json_t *list)
{
    const struct mpi_job *s = state;
    const struct fence *at;
    add_init(s, list);
    DL_FOREACH (s->fences, at) {
        OWNED char *text = NULL;
        size_t size;
        json_t *ranks = json_array();
        FILE *f = xmemstream(&text, &size);
        unsigned n = print_nodes(s, at->nodes, ARRIVED, NULL, f);
        fprintf(f, " %s in a %s; ", n == 1 ? "waits" : "wait",
                at->service == SERVICE_PMIX ? "PMIx fence (PMIx_Fence, as in MPI_Init)"
                                            : "PMI barrier (as in MPI_Init)");
        n = print_nodes(s, at->nodes, AWAITED, ranks, f);
        fputs(n == 1 ? " has not come" : " have not all come", f);
        xmemclose(f);
        json_array_append_new(
            list, json_pack("{s:o, s:o}", "text", event_text(text), "ranks", ranks));
    }
}

/* --- where ranks are ---------------------------------------------------------------- */

/* Every node gets PMI_process_mapping before its orders, if there are others and ranks
 * may use PMI. One that would be too long for PMI is not sent. */
static void mpi_prepare(void *state)
{
    struct job *j = ((struct mpi_job *)state)->job;
    struct rankmap map = {.nranks = (uint32_t)j->plan->nranks};
    if (!(j->job.mpi & MPI_PMI) || !(j->job.rank_names & NAMES_PMI) ||
        j->plan->nnodes == 1)
        return;
    OWNED uint32_t *node_of = map.node_of = xcalloc(map.nranks, sizeof *map.node_of);
    for (uint32_t r = 0; r < map.nranks; r++)
        map.node_of[r] = (uint32_t)j->plan->ranks[r].node;
    OWNED char *text = pmi_mapping(&map);
    if (text)
        job_send(j, NODE_ALL, MSG(pmi_mapping, text));
}

/* The first PMIx server that starts needs the names of all nodes. The others will, too:
 * all get them, and later requests have been answered by that. */
static int handle_map_request(void *state, unsigned node, const struct frame *f,
                              struct ddp_err *err)
{
    struct mpi_job *s = state;
    struct job *j = s->job;
    const struct msg_map_request *m = f->m;
    if (s->mapped || !j->plan || m->attempt != (uint32_t)j->restart.attempt)
        return 0;
    SCOPED(strv_finish) struct strv map = {0};
    struct msg_map all = {.attempt = m->attempt};
    size_t n;
    for (int p = 0; p < j->plan->nnodes; p++) {
        const struct plan_node *pn = &j->plan->nodes[p];
        rankmap_push(&map, pn->host->name, pn->ranks, pn->nlocal);
    }
    OWNED void *data = rankmap_pack(&map, &n, &all.size);
    all.data = data;
    all.ndata = (uint32_t)n;
    job_send(j, NODE_ALL, MSG_MAP, &all);
    s->mapped = true;
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static int mpi_init(void *state, struct ddp_err *err)
{
    struct mpi_job *s = state;
    struct job *j = s->job;
    j->job.mpi = j->opts->mpi;
    if (j->opts->mpi == MPI_NONE)
        return 1;
    s->in_mpi = xcalloc(j->alloc->nnodes, sizeof *s->in_mpi);
    s->all = xcalloc(j->alloc->nnodes, sizeof *s->all);
    return 0;
}

static int mpi_open(void *state, struct ddp_err *err)
{
    struct mpi_job *s = state;
    s->limit = limit_create(s->job->loop, on_limit, s);
    return 0;
}

static void mpi_ranks_started(void *state)
{
    struct mpi_job *s = state;
    if (s->job->opts->spawn_waits && !s->since_ms)
        s->since_ms = now_ms();
}

static void mpi_next_attempt(void *state)
{
    struct mpi_job *s = state;
    drop_fences(s);
    s->mapped = false;
    memset(s->in_mpi, 0, s->job->alloc->nnodes * sizeof *s->in_mpi);
    memset(s->all, 0, s->job->alloc->nnodes * sizeof *s->all);
    s->since_ms = 0;
    s->absent = 0;
    s->limited = false;
    limit_stop(s->limit);
}

static void mpi_fini(void *state)
{
    struct mpi_job *s = state;
    drop_fences(s);
    limit_destroy(s->limit);
    free(s->in_mpi);
    free(s->all);
}

static const struct job_message messages[] = {
    {MSG_FENCE, handle_fence},
    {MSG_PEER, handle_peer},
    {MSG_ABORT, handle_abort},
    {MSG_MEMBER, handle_member},
    {MSG_MAP_REQUEST, handle_map_request},
    {0},
};

const struct job_plugin mpi_job = {
    .name = "mpi",
    .state_size = sizeof(struct mpi_job),
    .init = mpi_init,
    .open = mpi_open,
    .fini = mpi_fini,
    .prepare = mpi_prepare,
    .ranks_started = mpi_ranks_started,
    .next_attempt = mpi_next_attempt,
    .waits = mpi_waits,
    .messages = messages,
};
