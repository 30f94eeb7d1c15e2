/* launcher/job/size.c - see size.h */
#include "launcher/job/size.h"

#include "launcher/job/plugin.h"

bool job_may_gain(const struct job *j)
{
    return j->alloc->changes || (!j->peers && j->opts->node_wait_ms > 0);
}

size_t job_hosts_most(const struct job *j)
{
    const struct opts *o = j->opts;
    return j->alloc->changes ? (size_t)o->nnodes + (size_t)o->spares : j->alloc->nnodes;
}

int job_losses(const struct job *j)
{
    const struct opts *o = j->opts;
    if (job_may_gain(j))
        return -1;
    return o->spares + (o->min_nnodes > 0 ? o->nnodes - o->min_nnodes : 0);
}

bool job_is_spare(const struct job *j, size_t node)
{
    if (j->nodes[node].late || j->alloc->changes)
        return j->nodes[node].place < 0;
    return node + (size_t)j->opts->spares >= j->alloc->nnodes;
}
