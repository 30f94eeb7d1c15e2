/* launcher/agent/singles.c - ranks that are started again while the others run (ranks.h)
 *
 * One after the other, in the way of the first start (ranks.c). Once all ranks have been
 * started, one that has no process is to be started again.
 */
#include "launcher/agent/ranks.h"

#include "common/mem.h"
#include "launcher/agent/kill_tree.h"

#include <signal.h>
#include <stdlib.h>

static enum kill_tree_rule only_group(const struct ancestry_proc *p, void *arg)
{
    return p->group == *(const pid_t *)arg ? KILL_TREE_TAKE : KILL_TREE_PASS;
}

/* The exited process of a rank, whose output may not be at its end. */
static void put_aside(struct ranks *r, uint32_t local)
{
    struct worker_proc *w = r->workers[local];
    pid_t group = worker_group(w);
    kill_tree_signal(SIGKILL, only_group, &group);
    size_t kept = 0;
    for (size_t i = 0; i < r->nformer; i++) {
        if (worker_drained(r->former[i]))
            worker_destroy(r->former[i]);
        else
            r->former[kept++] = r->former[i];
    }
    r->former = xrealloc(r->former, kept + 1, sizeof(struct worker_proc *));
    r->former[kept] = w;
    r->nformer = kept + 1;
    r->workers[local] = NULL;
    r->left[local] = false;
}

void singles_next(struct ranks *r)
{
    uint32_t local = 0;
    while (local < r->share->nlocal && r->workers[local])
        local++;
    if (local == r->share->nlocal || r->stopped)
        return;
    r->single = true;
    r->next = (int)local;
    r->until = (int)local + 1;
    event_active(r->starter, EV_TIMEOUT, 0);
}

void singles_forget(struct ranks *r)
{
    while (r->nformer > 0)
        worker_destroy(r->former[--r->nformer]);
    r->single = false;
    r->until = (int)r->share->nlocal;
}

bool ranks_may_start_one(const struct ranks *r, uint32_t local)
{
    return local < r->share->nlocal &&
           (r->stopped ||
            (r->workers[local] && worker_state(r->workers[local]) == WORKER_EXITED));
}

void ranks_start_one(struct ranks *r, uint32_t local)
{
    if (r->stopped)
        return;
    put_aside(r, local);
    if (r->next == r->until)
        singles_next(r);
}

/* --- streams, also of earlier processes --------------------------------------------- */

bool ranks_drained(const struct ranks *r)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] && !worker_drained(r->workers[i]))
            return false;
    }
    for (size_t i = 0; i < r->nformer; i++) {
        if (!worker_drained(r->former[i]))
            return false;
    }
    return true;
}

void ranks_cut(struct ranks *r, enum worker_cut which)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i])
            worker_cut(r->workers[i], which);
    }
    for (size_t i = 0; i < r->nformer; i++)
        worker_cut(r->former[i], which);
}
