/* launcher/job/fence.c - what nodes tell each other, by way of the launcher
 *
 * MPI programs start by exchanging their addresses. Each node's agent brings what its
 * ranks have to say (FENCE), and when the last node of those that meet has, everybody
 * gets all of it: collected here, passed down once per link, never looked into. PEER goes
 * from one node to one other. ABORT is a rank's own wish to end the job.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/spawn/program.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

struct meeting {
    uint8_t *key; /* owned: the frame up to its status */
    size_t nkey;
    int32_t status;
    struct pack data; /* what has been brought so far */
    uint32_t missing;
    bool *came; /* owned, by node rank */
    struct meeting *prev, *next;
};

static unsigned node_of_place(const struct job *j, uint32_t place)
{
    return (unsigned)(j->plan->nodes[place].host - j->alloc->nodes);
}

static void meeting_free(struct meeting *m)
{
    pack_finish(&m->data);
    free(m->key);
    free(m->came);
    free(m);
}

void job_forget_meetings(struct job *j)
{
    struct meeting *m, *next;
    DL_FOREACH_SAFE (j->meetings, m, next) {
        DL_DELETE(j->meetings, m);
        meeting_free(m);
    }
}

static struct meeting *meeting_at(struct job *j, const struct frame *f,
                                  const struct msg_fence *m)
{
    size_t nkey = f->size - m->ndata - sizeof m->status;
    struct meeting *at;
    DL_FOREACH (j->meetings, at) {
        if (at->nkey == nkey && memcmp(at->key, f->body, nkey) == 0)
            return at;
    }
    at = xcalloc(1, sizeof *at);
    at->key = xmemdup(f->body, nkey);
    at->nkey = nkey;
    at->missing = m->nnodes > 0 ? m->nnodes : (uint32_t)j->plan->nnodes;
    at->came = xcalloc((size_t)j->plan->nnodes, sizeof *at->came);
    DL_APPEND(j->meetings, at);
    return at;
}

/* Everybody is there: all get the same. */
static void meeting_over(struct job *j, struct meeting *at, const struct msg_fence *m)
{
    struct pack k = {0};
    pack_bytes(&k, at->key, at->nkey);
    pack_u32(&k, (uint32_t)at->status);
    pack_bytes(&k, at->data.p, at->data.n);
    if (k.n > FENCE_MAX)
        job_fail_text(j, CAUSE_CANNOT, EXIT_CANNOT_START,
                      xasprintf("the ranks have %zu MiB to tell each other at once: the "
                                "limit is %d",
                                k.n >> 20, FENCE_MAX >> 20));
    else if (m->nnodes == 0)
        job_send(j, NODE_ALL, MSG_FENCE, &k);
    for (uint32_t i = 0; i < m->nnodes && k.n <= FENCE_MAX; i++)
        job_send(j, node_of_place(j, m->nodes[i]), MSG_FENCE, &k);
    pack_finish(&k);
    DL_DELETE(j->meetings, at);
    meeting_free(at);
}

int job_hear_fence(struct job *j, unsigned node, const struct frame *f,
                   struct ddp_err *err)
{
    struct msg_fence m = {0};
    if (msg_fence_unpack(f, &m, err) < 0)
        return -1;
    int place = j->nodes[node].place, rc = 0;
    bool invited = m.nnodes == 0;
    for (uint32_t i = 0; i < m.nnodes; i++) {
        invited |= m.nodes[i] == (uint32_t)place;
        if (!j->plan || m.nodes[i] >= (uint32_t)j->plan->nnodes)
            rc = err_set(err, "a fence with a node that is not there");
    }
    if (rc == 0 && (place < 0 || !invited))
        rc = err_set(err, "a fence that it does not belong to");
    struct meeting *at = rc == 0 ? meeting_at(j, f, &m) : NULL;
    if (at && at->came[place])
        rc = err_set(err, "twice at the same fence");
    if (rc == 0) {
        at->came[place] = true;
        at->status = at->status ? at->status : m.status;
        pack_bytes(&at->data, m.data, m.ndata);
        log_trace("a fence of %zu bytes by now, %u nodes are missing", at->data.n,
                  at->missing - 1);
        if (--at->missing == 0)
            meeting_over(j, at, &m);
    }
    msg_fence_finish(&m);
    return rc;
}

int job_hear_peer(struct job *j, unsigned node, const struct frame *f,
                  struct ddp_err *err)
{
    struct msg_peer m;
    if (msg_peer_unpack(f, &m, err) < 0)
        return -1;
    if (!j->plan || m.node >= (uint32_t)j->plan->nnodes || j->nodes[node].place < 0)
        return err_set(err, "a word for a node that is not there");
    unsigned to = node_of_place(j, m.node);
    struct pack k = {0};
    m.node = (uint32_t)j->nodes[node].place;
    msg_peer_pack_head(&m, &k);
    pack_bytes(&k, m.data, m.ndata);
    job_send(j, to, MSG_PEER, &k);
    pack_finish(&k);
    return 0;
}

int job_hear_abort(struct job *j, unsigned node, const struct frame *f,
                   struct ddp_err *err)
{
    struct msg_abort m = {0};
    if (msg_abort_unpack(f, &m, err) < 0)
        return -1;
    if (!job_rank_is_of(j, m.rank, node)) {
        msg_abort_finish(&m);
        return err_set(err, "the wish of a rank it does not have");
    }
    int code = m.code & 0xff;
    job_fail(j, (struct cause){.kind = CAUSE_ABORT,
                               .rank = (int)m.rank,
                               .code = code ? code : 1,
                               .at_ns = m.at_ns - j->nodes[node].ahead_ns,
                               .text = m.text});
    return 0;
}
