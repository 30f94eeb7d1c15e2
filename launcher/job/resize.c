/* launcher/job/resize.c - hosts that are added or removed without a restart of all ranks
 *
 * For a plug-in whose ranks need no restart. A place in the plan is kept: when its node
 * leaves, it is vacant until another node with as many ranks takes it.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/attempt.h"
#include "launcher/job/hooks.h"
#include "launcher/job/io.h"
#include "launcher/job/job_shape.h"
#include "launcher/job/losses.h"

#include "common/log.h"
#include "common/mem.h"

#include <limits.h>
#include <signal.h>

long job_node_at(const struct job *j, int place)
{
    long node = j->plan->nodes[place].host - j->alloc->nodes;
    return j->nodes[node].place == place ? node : -1;
}

/* A vacant place that fits, if possible the one that it had; -1: none. */
static int find_vacant(const struct job *j, const struct alloc_node *host, int ranks)
{
    int found = -1;
    for (int p = 0; p < j->plan->nnodes; p++) {
        /* it stays there */
        bool store = p == 0 && !j->store_lost && j->plan->nodes[p].host != host;
        if (j->plan->nodes[p].nlocal != ranks || job_node_at(j, p) >= 0 || store)
            continue;
        if (found < 0 || j->plan->nodes[p].host == host)
            found = p;
    }
    return found;
}

/* What may be added; nodes that leave do not count. */
struct headroom {
    int nodes, ranks;
};

static bool may_add(const struct job *j, const struct job_node *n, struct headroom left,
                    int *ranks)
{
    if (n->place >= 0 || !job_node_usable(n) || left.nodes <= 0 || left.ranks <= 0)
        return false;
    int room = job_node_room(j, n);
    *ranks = room < left.ranks ? room : left.ranks;
    return room > 0;
}

static struct headroom headroom_of(const struct job *j)
{
    const struct opts *o = j->opts;
    struct headroom left = {o->min_nnodes > 0 ? o->nnodes : 0,
                            o->max_np ? o->max_np : INT_MAX};
    EACH_NODE (j, n) {
        if (n->place < 0 || n->leaving)
            continue;
        left.nodes--;
        left.ranks -= j->plan->nodes[n->place].nlocal;
    }
    return left;
}

bool job_can_add(const struct job *j)
{
    int ranks;
    struct headroom left = headroom_of(j);
    return ANY_NODE(j, n, may_add(j, n, left, &ranks));
}

void job_add_nodes(struct job *j)
{
    struct headroom left = headroom_of(j);
    int before = j->plan->nranks, ranks;
    EACH_NODE (j, n) {
        if (!may_add(j, n, left, &ranks))
            continue;
        left.nodes--;
        left.ranks -= ranks;
        int place = find_vacant(j, n->host, ranks);
        n->place = place < 0 ? plan_add_node(j->plan, n->host, ranks) : place;
        n->resized = false;
        j->plan->nodes[n->place].host = n->host;
    }
    int now = j->plan->nranks;
    j->ranks = xgrow(j->ranks, (size_t)before, (size_t)now, sizeof *j->ranks);
    for (int r = before; r < now; r++)
        j->ranks[r] = (struct job_rank){.exited = true, .stopped = true};
    output_add_ranks(j->output, now);
    j->job.nranks = (uint32_t)now;
    j->job.nnodes = (uint32_t)j->plan->nnodes;
    job_shape(&j->job, j->plan);
    if (now > before)
        JOB_HOOKS(j, ranks_added, before);
}

void job_start_rank(struct job *j, uint32_t rank, struct strv *env)
{
    const struct plan_rank *pr = &j->plan->ranks[rank];
    struct msg_start_rank m = {.local = (uint32_t)pr->local_rank, .env = *env};
    job_renew_rank(j, (int)rank);
    job_send(j, (unsigned)job_node_at(j, pr->node), MSG_START_RANK, &m);
    strv_finish(env);
}

bool job_node_runs(const struct job *j, unsigned node)
{
    const struct job_node *n = &j->nodes[node];
    return n->place >= 0 && n->told != TOLD_STANDBY && !n->ended;
}

void job_start_node(struct job *j, unsigned node)
{
    struct job_node *n = &j->nodes[node];
    const struct plan_node *pn = &j->plan->nodes[n->place];
    for (int i = 0; i < pn->nlocal; i++)
        job_renew_rank(j, pn->ranks[i]);
    n->ended = n->unasked = false;
    job_welcome(j, node);
    job_input_begin(j);
}

void job_end_node(struct job *j, unsigned node)
{
    job_send(j, node,
             MSG(terminate, .number = SIGTERM, .grace_ms = (uint32_t)j->opts->grace_ms,
                 .again = true));
}

void job_node_vacate(struct job *j, unsigned node)
{
    j->nodes[node].place = -1;
    job_dismiss_leaving(j);
}
