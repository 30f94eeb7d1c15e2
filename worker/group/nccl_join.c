/* worker/group/nccl_join.c - see nccl_join.h */
#include "worker/group/nccl_join.h"

#include "common/err.h"
#include "worker/group/group.h"

#include <stdio.h>

void nccl_call_init(void *init)
{
    struct nccl_init *i = init;
    i->enter(i->device);
    i->rc = nccl_api.init(&i->comm, i->size, i->id, i->rank);
}

static int join(struct ddp_group *g, struct nccl_init *i, struct ddp_err *err)
{
    char what[64];
    if (i->rank == 0 &&
        nccl_check(nccl_api.unique_id(&i->id), "ncclGetUniqueId", err) < 0)
        return -1;
    TRY(group_share(g, COLL_BROADCAST, &i->id, &i->id, sizeof i->id, err));
    snprintf(what, sizeof what, "%s, ncclCommInitRank", nccl_api.name);
    TRY(group_call_foreign(g, nccl_call_init, i, sizeof *i, what,
                           "look at NCCL_SOCKET_IFNAME, and at what NCCL_DEBUG=INFO says",
                           err));
    return nccl_check(i->rc, what, err);
}

int nccl_join(struct ddp_group *g, void (*enter)(void *device), void *device, void **comm,
              struct ddp_err *err)
{
    struct nccl_init i = {
        .enter = enter, .device = device, .size = g->layout.size, .rank = g->layout.rank};
    int rc = join(g, &i, err);
    *comm = rc == 0 ? i.comm : NULL;
    return rc == 0 || g->broken ? rc : group_failed(g, err);
}
