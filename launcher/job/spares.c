/* launcher/job/spares.c - which nodes the next attempt has: spares, fewer, or more
 *
 * The last hosts of the allocation get no rank. Their agents are started with the others
 * and hold an interpreter that has done the imports. When a node is lost, a spare takes
 * its place in the plan: the ranks keep their numbers, and the next attempt starts them
 * there. With --nnodes MIN:MAX and no spare the next attempt has a new plan, of the nodes
 * that are left; and of those that have joined meanwhile (hosts.c), up to MAX. Nodes that
 * stay keep their order in it, new ones follow.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/spares.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/job/describe.h"
#include "launcher/job/job_shape.h"
#include "launcher/job/plugin.h"

#include <stdlib.h>

static bool has_slots(const struct job *j, const struct job_node *n, int place)
{
    return j->opts->oversubscribe || n->host->slots >= j->plan->nodes[place].nlocal;
}

void job_warn_spares(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        const struct job_node *n = &j->nodes[i];
        int place = 0;
        if (j->alloc->changes || !job_is_spare(j, i))
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

static bool works(const struct job_node *n)
{
    return n->joined && job_node_connected(n) && n->holds == 0;
}

bool job_node_usable(const struct job_node *n)
{
    return works(n) && !n->leaving;
}

static bool fits(const struct job *j, const struct job_node *n, int place)
{
    return job_node_usable(n) && n->place < 0 && has_slots(j, n, place);
}

int job_node_room(const struct job *j, const struct job_node *n)
{
    struct ddp_err err;
    int ranks;
    return plan_cap(j->opts, n->host, &ranks, &err) == 0 ? ranks : 0;
}

/* Nodes that may have ranks, and how many; `leaving` ones as well? */
static int count_usable(const struct job *j, bool leaving, int *ranks)
{
    int nodes = 0;
    *ranks = 0;
    EACH_NODE (j, n) {
        int room = works(n) && (leaving || !n->leaving) ? job_node_room(j, n) : 0;
        nodes += room > 0;
        *ranks += room;
    }
    return nodes;
}

/* May the job go on with those nodes, as many as it needs at least, and with room for as
 * many ranks? If not without the `leaving` ones, these stay while they work. */
static bool nodes_suffice(const struct job *j, bool leaving)
{
    const struct opts *o = j->opts;
    int ranks, nodes = count_usable(j, leaving, &ranks);
    int least = o->min_nnodes > 0 || j->alloc->changes ? opts_least_nodes(o) : 0;
    int np = o->oversubscribe ? 0 : o->np ? o->np : o->min_np;
    return least > 0 && nodes >= least && ranks >= np;
}

/* Pair each node that cannot keep its place with a spare; with `replace` also put the
 * spare in its place. False: there are too few. */
static bool pair(struct job *j, bool replace)
{
    OWNED bool *taken = xcalloc(j->alloc->nnodes, sizeof *taken);
    /* places that hosts have left while ranks ran have no node */
    bool enough = COUNT_NODES(j, n, n->place >= 0) == (unsigned)j->plan->nnodes;
    for (size_t i = 0; i < j->alloc->nnodes && enough; i++) {
        struct job_node *old = &j->nodes[i];
        int place = old->place;
        if (place < 0 || job_node_usable(old))
            continue;
        size_t k = 0;
        while (k < j->alloc->nnodes && (taken[k] || !fits(j, &j->nodes[k], place)))
            k++;
        if (k == j->alloc->nnodes) {
            enough = works(old) && !nodes_suffice(j, false);
            continue;
        }
        taken[k] = true;
        if (!replace)
            continue;
        job_say(j, "ddprun: %s takes the place of %s", j->nodes[k].host->name,
                old->host->name);
        old->place = -1;
        j->nodes[k].place = place;
        j->nodes[k].resized = false;
        j->plan->nodes[place].host = j->nodes[k].host;
    }
    return enough;
}

bool job_has_enough(struct job *j)
{
    return j->plan && (pair(j, false) || nodes_suffice(j, true));
}

bool job_any_held(const struct job *j)
{
    return ANY_NODE(j, n, job_node_connected(n) && n->holds > 0);
}

bool job_can_replace(struct job *j)
{
    return j->plan && job_losses(j) != 0 &&
           (j->opts->node_wait_ms > 0 || job_any_held(j) || job_has_enough(j));
}

static bool may_have_more_ranks(const struct job *j)
{
    const struct opts *o = j->opts;
    return o->np == 0 && (o->max_np == 0 || j->plan->nranks < o->max_np);
}

bool job_can_grow(const struct job *j)
{
    int ranks;
    return j->plan && j->opts->min_nnodes > 0 && j->plan->nnodes < j->opts->nnodes &&
           may_have_more_ranks(j) && count_usable(j, false, &ranks) > j->plan->nnodes;
}

bool job_can_drop(const struct job *j)
{
    return ANY_NODE(j, n, n->leaving && n->place >= 0) && nodes_suffice(j, false);
}

/* The room of a node with ranks that could have another number of them now; else -1. */
static int changed_room(const struct job *j, const struct job_node *n)
{
    if (!n->resized || n->place < 0 || !job_node_usable(n))
        return -1;
    int room = job_node_room(j, n), has = j->plan->nodes[n->place].nlocal;
    return room < has || (room > has && may_have_more_ranks(j)) ? room : -1;
}

bool job_node_resized(const struct job *j, unsigned node)
{
    return changed_room(j, &j->nodes[node]) > 0;
}

bool job_can_resize(const struct job *j)
{
    return ANY_NODE(j, n, changed_room(j, n) >= 0) && nodes_suffice(j, false);
}

/* Hosts that the first attempt needs. */
static unsigned least_at_start(const struct job *j)
{
    const struct opts *o = j->opts;
    if (o->nnodes > 0)
        return (unsigned)opts_least_nodes(o);
    return j->plan ? (unsigned)j->plan->nnodes
                   : (unsigned)j->alloc->nnodes - (unsigned)o->spares;
}

bool job_survives_start(const struct job *j)
{
    return COUNT_NODES(j, n, n->wanted && !n->trouble && !n->lost) >= least_at_start(j);
}

bool job_go_without(struct job *j)
{
    if (COUNT_NODES(j, n, works(n)) < least_at_start(j))
        return false;
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (!j->nodes[i].trouble)
            continue;
        log_warn("going on without %s", j->nodes[i].trouble);
        j->alloc->nodes[i].gone = true;
    }
    job_forget_plan(j);
    return true;
}

static void say_size(struct job *j, int before)
{
    OWNED char *of = before > j->plan->nnodes
                         ? xasprintf("%d of %d", j->plan->nnodes, before)
                         : xasprintf("%d", j->plan->nnodes);
    job_say(j, "ddprun: the job goes on with %s hosts, %d rank%s", of, j->plan->nranks,
            j->plan->nranks == 1 ? "" : "s");
}

/* Of all nodes that may have ranks. */
static int plan_again(struct job *j, struct ddp_err *err)
{
    int before = j->plan->nnodes;
    bool keep = !nodes_suffice(j, false);
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        const struct job_node *n = &j->nodes[i];
        j->alloc->nodes[i].gone =
            !works(n) || (n->leaving && !keep) || job_node_room(j, n) == 0;
        j->alloc->nodes[i].turn = (unsigned)(n->place >= 0 ? n->place : before);
    }
    if (job_make_plan(j, err) < 0)
        return -1;
    say_size(j, before);
    return 0;
}

int job_replace_lost(struct job *j, struct ddp_err *err)
{
    bool enough = pair(j, false);
    if (!enough && !nodes_suffice(j, true))
        return err_set(err, "no host is left for the place of the lost one");
    if (enough)
        pair(j, true);
    if (!enough || job_can_grow(j) || job_can_resize(j))
        return plan_again(j, err);
    job_shape(&j->job, j->plan); /* it names the hosts */
    return 0;
}
