/* worker/group/backend.c - see backend.h */
#include "worker/group/backend.h"

static int advance(struct ddp_group *g, struct coll *c, int *culprit, struct ddp_err *err)
{
    *culprit = -1;
    return coll_by_messages(c->kind) ? alltoall_advance(g, c, err)
                                     : hier_advance(g->hier, c, culprit, err);
}

const struct backend backend_shm = {.name = "shm", .advance = advance};
const struct backend backend_tcp = {.name = "tcp", .advance = advance};
const struct backend backend_hier = {.name = "shm+tcp", .advance = advance};

const struct backend *backend_of_layout(const struct layout *l)
{
    if (l->nhosts == 1)
        return &backend_shm;
    return l->nhosts == l->size ? &backend_tcp : &backend_hier;
}
