/* worker/group/backend.c - see backend.h */
#include "worker/group/backend.h"

static int shm_advance(struct ddp_group *g, struct coll *c, int *culprit,
                       struct ddp_err *err)
{
    *culprit = -1;
    return coll_by_messages(c->kind) ? alltoall_advance(g, c, err)
                                     : shm_coll_advance(g->shm, c, err);
}

static int tcp_advance(struct ddp_group *g, struct coll *c, int *culprit,
                       struct ddp_err *err)
{
    *culprit = -1;
    return coll_by_messages(c->kind) ? alltoall_advance(g, c, err)
                                     : hier_advance(g->hier, c, culprit, err);
}

const struct backend backend_shm = {.name = "shm", .advance = shm_advance};
const struct backend backend_tcp = {.name = "tcp", .advance = tcp_advance};
const struct backend backend_hier = {.name = "shm+tcp", .advance = tcp_advance};

const struct backend *backend_of_layout(const struct layout *l)
{
    if (l->nhosts == 1)
        return &backend_shm;
    return l->nhosts == l->size ? &backend_tcp : &backend_hier;
}
