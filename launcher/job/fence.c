/* launcher/job/fence.c - data that nodes exchange through the launcher (PMIx, PMI)
 *
 * MPI programs start by exchanging their addresses. Each agent sends the data of its
 * ranks (FENCE); when the last participating node has arrived, all of them get the
 * concatenated data, once per link. The launcher does not parse it. PEER goes from one
 * node to another. ABORT is a rank's request to end the job.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

struct fence {
    uint8_t *key; /* owned: the frame's bytes before the status, which identify it */
    size_t nkey;
    int32_t status;
    struct pack data; /* of the nodes that have arrived */
    uint32_t missing; /* nodes that have not arrived */
    bool *arrived;    /* owned, by node rank */
    struct fence *prev, *next;
};

static unsigned node_of_place(const struct job *j, uint32_t place)
{
    return (unsigned)(j->plan->nodes[place].host - j->alloc->nodes);
}

static void fence_free(struct fence *m)
{
    pack_finish(&m->data);
    free(m->key);
    free(m->arrived);
    free(m);
}

void job_reset_fences(struct job *j)
{
    struct fence *m, *next;
    DL_FOREACH_SAFE (j->fences, m, next) {
        DL_DELETE(j->fences, m);
        fence_free(m);
    }
}

static struct fence *fence_find(struct job *j, const struct frame *f,
                                const struct msg_fence *m)
{
    size_t nkey = f->size - m->ndata - sizeof m->status;
    struct fence *at;
    DL_FOREACH (j->fences, at) {
        if (at->nkey == nkey && memcmp(at->key, f->body, nkey) == 0)
            return at;
    }
    at = xcalloc(1, sizeof *at);
    at->key = xmemdup(f->body, nkey);
    at->nkey = nkey;
    at->missing = m->nnodes > 0 ? m->nnodes : (uint32_t)j->plan->nnodes;
    at->arrived = xcalloc((size_t)j->plan->nnodes, sizeof *at->arrived);
    DL_APPEND(j->fences, at);
    return at;
}

/* All nodes have arrived: send the data to each. */
static void fence_complete(struct job *j, struct fence *at, const struct msg_fence *m)
{
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
    DL_DELETE(j->fences, at);
    fence_free(at);
}

int job_handle_fence(struct job *j, unsigned node, const struct frame *f,
                     struct ddp_err *err)
{
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
    struct fence *at = fence_find(j, f, m);
    if (at->arrived[place])
        return err_set(err, "it joined the same fence twice");
    at->arrived[place] = true;
    at->status = at->status ? at->status : m->status;
    pack_bytes(&at->data, m->data, m->ndata);
    log_trace("fence: %zu bytes so far, waiting for %u nodes", at->data.n,
              at->missing - 1);
    if (--at->missing == 0)
        fence_complete(j, at, m);
    return 0;
}

int job_handle_peer(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err)
{
    struct msg_peer *m = f->m;
    if (!j->plan || m->node >= (uint32_t)j->plan->nnodes || j->nodes[node].place < 0)
        return err_set(err, "a peer message for an unknown node");
    unsigned to = node_of_place(j, m->node);
    m->node = (uint32_t)j->nodes[node].place;
    job_send(j, to, MSG_PEER, m);
    return 0;
}

int job_handle_abort(struct job *j, unsigned node, const struct frame *f,
                     struct ddp_err *err)
{
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
