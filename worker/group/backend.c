/* worker/group/backend.c - see backend.h */
#include "worker/group/backend.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/offload.h"
#include "worker/group/alltoall.h"

#include <string.h>

enum { POLL_MS = 5 }; /* between checks for failures of other ranks */

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

static const void *await_aside(struct ddp_group *g, struct offload *a, const char *what,
                               const char *hint, struct ddp_err *err)
{
    const void *done;
    bool ended = false;
    int64_t until = now_ms() + g->timeout_ms;
    while (!(done = offload_wait(a, POLL_MS))) {
        if (group_poll(g, &ended, err) < 0)
            return NULL;
        if (now_ms() < until)
            continue;
        err_set(err, "%s: the %d ranks have not met within %g s: %s", what,
                g->layout.size, (double)g->timeout_ms / 1000, hint);
        group_break(g, -1, err); /* the same words from each */
        return NULL;
    }
    return done;
}

int backend_aside(struct ddp_group *g, void (*call)(void *copy), void *arg, size_t bytes,
                  const char *what, const char *hint, struct ddp_err *err)
{
    struct offload *a = offload_begin(call, arg, bytes, err);
    if (!a)
        return -1;
    g->npending++; /* so that it is looked whether the others live */
    const void *done = await_aside(g, a, what, hint, err);
    if (!g->broken)
        g->npending--;
    if (done)
        memcpy(arg, done, bytes);
    offload_end(a);
    return done ? 0 : -1;
}
