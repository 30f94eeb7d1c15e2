/* launcher/job/spares.c - nodes that replace lost ones (--spares)
 *
 * The last hosts of the allocation get no rank. Their agents are started with the others
 * and hold an interpreter that has done the imports. When a node is lost, a spare takes
 * its place in the plan: the ranks keep their numbers, and the next attempt starts them
 * there.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/log.h"
#include "common/mem.h"
#include "launcher/link/rankmap.h"

#include <stdlib.h>

bool job_is_spare(const struct job *j, size_t node)
{
    return node + (size_t)j->opts->spares >= j->alloc->nnodes;
}

void job_warn_spares(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (job_is_spare(j, i) && j->nodes[i].trouble)
            log_warn("no spare: %s", j->nodes[i].trouble);
    }
}

/* Can it run the ranks of `place`? */
static bool fits(const struct job *j, const struct job_node *n, int place)
{
    return job_node_connected(n) && n->place < 0 &&
           (j->opts->oversubscribe || n->host->slots >= j->plan->nodes[place].nlocal);
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

bool job_can_replace(struct job *j)
{
    return j->opts->spares > 0 && j->plan && pair(j, false);
}

void job_replace_lost(struct job *j)
{
    pair(j, true);
    strv_finish(&j->job.map);
    job_make_map(j);
}
