/* worker/group/breaking.c - see breaking.h */
#include "worker/group/breaking.h"

#include "common/duration.h"
#include "common/err.h"
#include "worker/group/messages.h"

#include <stdio.h>

enum {
    NEWS_MS = 200, /* for the cause to come when a connection has closed */
    GLANCE_MS = 5  /* between looks for it on this host */
};

bool group_told(struct ddp_group *g, int *culprit, struct ddp_err *theirs)
{
    return (g->shm && shm_failed(g->shm, culprit, theirs)) ||
           (g->tcp && tcp_failure_told(g->tcp, culprit, theirs));
}

static int be_broken(struct ddp_group *g, int culprit, struct ddp_err *err,
                     enum tcp_audience audience)
{
    if (!g->broken) {
        if (g->shm) { /* one cause for the whole host: the first that was written */
            shm_fail(g->shm, culprit, err->text);
            shm_failed(g->shm, &culprit, err);
        }
        g->broken = true;
        g->why = *err;
        g->first = g->last = NULL; /* each is told when it is tested or waited for */
        messages_drop(g);
        if (g->tcp) {
            tcp_tell_failure(g->tcp, culprit, err->text, audience);
            tcp_close_streams(g->tcp);
        }
    }
    *err = g->why;
    return -1;
}

int group_break(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    return be_broken(g, culprit, err, TCP_TO_ALL);
}

int group_pass_on(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    return be_broken(g, culprit, err, TCP_TO_NEIGHBOURS);
}

const char *group_doing(const struct ddp_group *g, char *text, size_t size)
{
    if (g->first)
        return coll_name(&g->first->coll, text, size);
    snprintf(text, size, "a send or receive");
    return text;
}

bool group_told_soon(struct ddp_group *g, int *culprit, struct ddp_err *theirs)
{
    int64_t until = now_ms() + NEWS_MS;
    while (!group_told(g, culprit, theirs)) {
        if (!g->tcp || now_ms() >= until)
            return false;
        tcp_await_connection(g->tcp, GLANCE_MS);
    }
    return true;
}

/* A rank has gone, or so it seems: it may have left because of what another one did,
 * which it has then told before it closed its door, or only the connection may be cut.
 * One answer does not say that: the door of a process that is being ended may close a
 * while after its streams, where CPUs are scarce. When a connection is cut both ends miss
 * each other; so that they do not say two things, the higher rank gives the lower one's
 * word time to come. */
static bool told_instead(struct ddp_group *g, int culprit, bool *lives, int *first,
                         struct ddp_err *theirs)
{
    int looks = g->layout.rank > culprit ? 4 : 2;
    *lives = true;
    for (int i = 0; i < looks && *lives; i++) {
        if (group_told_soon(g, first, theirs))
            return true;
        *lives = g->tcp && tcp_answers(g->tcp, culprit);
    }
    return group_told(g, first, theirs);
}

int group_lost(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    int first;
    bool lives;
    struct ddp_err theirs, how = *err;
    char what[64], me[128], other[128];
    if (told_instead(g, culprit, &lives, &first, &theirs)) {
        *err = theirs;
        return group_pass_on(g, first, err);
    }
    group_doing(g, what, sizeof what);
    if (!lives) {
        err_set(err, "%.400s during %s", how.text, what);
        return group_break(g, culprit, err);
    }
    layout_who(&g->layout, g->layout.rank, me, sizeof me);
    layout_who(&g->layout, culprit, other, sizeof other);
    err_set(err, "the connection between %s and %s was cut during %s", me, other, what);
    return group_break(g, -1, err);
}
