/* launcher/job/spares.c - when nodes are lost: spares, or fewer nodes
 *
 * The last hosts of the allocation get no rank. Their agents are started with the others
 * and hold an interpreter that has done the imports. When a node is lost, a spare takes
 * its place in the plan: the ranks keep their numbers, and the next attempt starts them
 * there. With --nnodes MIN:MAX and no spare the next attempt has a new plan, of the nodes
 * that are left.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/log.h"
#include "common/mem.h"

#include <stdlib.h>

int job_losses(const struct opts *opts)
{
    return opts->spares + (opts->min_nnodes > 0 ? opts->nnodes - opts->min_nnodes : 0);
}

bool job_is_spare(const struct job *j, size_t node)
{
    return node + (size_t)j->opts->spares >= j->alloc->nnodes;
}

static bool has_slots(const struct job *j, const struct job_node *n, int place)
{
    return j->opts->oversubscribe || n->host->slots >= j->plan->nodes[place].nlocal;
}

void job_warn_spares(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        const struct job_node *n = &j->nodes[i];
        int place = 0;
        if (!job_is_spare(j, i))
            continue;
        while (place < j->plan->nnodes && has_slots(j, n, place))
            place++;
        if (n->trouble)
            log_warn("no spare: %s", n->trouble);
        else if (place < j->plan->nnodes)
            log_warn("the spare node %s cannot replace %s: slots=%d there, but %d ranks",
                     n->host->name, j->plan->nodes[place].host->name, n->host->slots,
                     j->plan->nodes[place].nlocal);
    }
}

/* Can it run the ranks of `place`? */
static bool fits(const struct job *j, const struct job_node *n, int place)
{
    return job_node_connected(n) && n->place < 0 && has_slots(j, n, place);
}

/* Pair each lost node with a spare; with `replace` also put it in its place. False: there
 * are too few. */
static bool pair(struct job *j, bool replace)
{
    bool *taken = xcalloc(j->alloc->nnodes, sizeof *taken), enough = true;
    for (size_t i = 0; i < j->alloc->nnodes && enough; i++) {
        struct job_node *lost = &j->nodes[i];
        int place = lost->place;
        if (!lost->lost || place < 0)
            continue;
        size_t k = 0;
        while (k < j->alloc->nnodes && (taken[k] || !fits(j, &j->nodes[k], place)))
            k++;
        enough = k < j->alloc->nnodes;
        if (!enough)
            break;
        taken[k] = true;
        if (!replace)
            continue;
        char *line = xasprintf("ddprun: %s takes the place of %s", j->nodes[k].host->name,
                               lost->host->name);
        job_say(j, line);
        free(line);
        lost->place = -1;
        j->nodes[k].place = place;
        j->nodes[k].replaces = true;
        j->plan->nodes[place].host = j->nodes[k].host;
    }
    free(taken);
    return enough;
}

/* Are there enough nodes for an attempt with fewer? */
static bool can_shrink(const struct job *j)
{
    size_t left = 0;
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        left += j->nodes[i].joined && job_node_connected(&j->nodes[i]);
    return j->opts->min_nnodes > 0 && left >= (size_t)j->opts->min_nnodes;
}

bool job_can_replace(struct job *j)
{
    return j->plan && ((j->opts->spares > 0 && pair(j, false)) || can_shrink(j));
}

bool job_go_without(struct job *j)
{
    if (!can_shrink(j))
        return false;
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (!j->nodes[i].trouble)
            continue;
        log_warn("going on without %s", j->nodes[i].trouble);
        j->alloc->nodes[i].gone = true;
    }
    j->planned_again = true;
    return true;
}

static void say_shrunk(struct job *j, int before)
{
    char *line = xasprintf("ddprun: the job goes on with %d of %d hosts, %d ranks",
                           j->plan->nnodes, before, j->plan->nranks);
    job_say(j, line);
    free(line);
}

int job_replace_lost(struct job *j, struct ddp_err *err)
{
    int before = j->plan->nnodes;
    if (pair(j, false)) {
        pair(j, true);
        return 0;
    }
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        j->alloc->nodes[i].gone |=
            !j->nodes[i].joined || !job_node_connected(&j->nodes[i]);
    j->planned_again = true;
    if (job_make_plan(j, err) < 0)
        return -1;
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        j->nodes[i].replaces = j->nodes[i].place >= 0;
    say_shrunk(j, before);
    return 0;
}
