/* worker/group/awaited.c - see group.h */
#include "worker/group/group.h"

#include "common/err.h"
#include "common/idset.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/group/failure_watch.h"

#include <stdio.h>
#include <string.h>

const struct coll *awaited_coll(const struct ddp_group *g)
{
    if (!g->colls.first || !g->shm)
        return NULL;
    const struct coll *c = &g->colls.first->coll;
    return c->state == COLL_ANNOUNCED || c->state == COLL_WAITS ? c : NULL;
}

enum awaited awaited_rank(const struct ddp_group *g, int local)
{
    const struct coll *c = awaited_coll(g);
    enum awaited by_message = p2p_awaits(g, g->shm->ranks[local]);
    if ((c && !shm_coll_reached(g->shm, c, local)) ||
        (watch_blind(g) && g->colls.first && !watch_came(g, local)))
        return AWAITED;
    return by_message == AWAITED_NOT && watch_blind(g) ? AWAITED_PERHAPS : by_message;
}

enum { NAMED = 4, LISTED = 1024 };

/* "rank 3 on node02, rank 5 on node02"; of many the numbers alone: "ranks 1,4-7,9". */
static void list(const struct ddp_group *g, const int *ranks, int n, char *text,
                 size_t size)
{
    SCOPED(idset_finish) struct idset set = {0};
    size_t at = (size_t)snprintf(text, size, "%s", n ? "" : "the others");
    for (int i = 0; i < n; i++) {
        idset_add(&set, ranks[i], ranks[i]);
        if (n <= NAMED)
            at += (size_t)snprintf(text + at, size - at, "%s%s", i > 0 ? ", " : "",
                                   layout_who(&g->layout, ranks[i]).text);
    }
    if (n <= NAMED)
        return;
    OWNED char *all = idset_text(&set);
    size_t most = size - sizeof "ranks ,...", fits = strlen(all);
    while (fits > most || (all[fits] && all[fits] != ',')) /* no part of a number */
        fits--;
    snprintf(text, size, "ranks %.*s%s", (int)fits, all, all[fits] ? ",..." : "");
}

/* Ranks that have not entered the current collective: on this host, then elsewhere, where
 * some may not be asked. */
static int list_late(struct ddp_group *g, int *ranks, int *unasked)
{
    int n = 0;
    const struct shm *s = g->shm;
    for (int i = 0; s && g->colls.first && i < s->n && n < LISTED; i++) {
        bool late = watch_blind(g)
                        ? !watch_came(g, i)
                        : awaited_coll(g) &&
                              atomic_load(&s->rank[i].post[s->seq & 1].seq) != s->seq;
        if (late)
            ranks[n++] = s->ranks[i];
    }
    if (g->tcp && g->colls.first)
        n += tcp_ask(g->tcp, g->colls.first->coll.number, ranks + n, LISTED - n, unasked);
    return n;
}

/* Ranks that data are expected from; they may be waiting themselves. */
static int list_awaited(const struct ddp_group *g, int *ranks)
{
    int n = g->tcp ? tcp_awaited(g->tcp, ranks, LISTED) : 0;
    for (int i = 0; g->shm && i < g->shm->n && n < LISTED; i++) {
        if (i != g->shm->me && awaited_rank(g, i))
            ranks[n++] = g->shm->ranks[i];
    }
    return n;
}

bool group_is_late(struct ddp_group *g, int rank)
{
    OWNED int *ranks = xcalloc(LISTED, sizeof *ranks);
    int unasked, n = list_late(g, ranks, &unasked);
    while (n > 0 && ranks[n - 1] != rank)
        n--;
    return n > 0;
}

void ddp_explain_wait(struct ddp_group *g, double seconds, struct ddp_err *err)
{
    char names[560], more[80] = "";
    struct phrase call = group_current_call(g);
    OWNED int *ranks = xcalloc(LISTED, sizeof *ranks);
    int unasked = 0, late = list_late(g, ranks, &unasked);
    if (unasked > 0)
        snprintf(more, sizeof more,
                 "; %d could not be asked: too many open files (raise 'ulimit -n')",
                 unasked);
    if (late > 0) {
        list(g, ranks, late, names, sizeof names);
        err_set(err, "%s: %s %s not come within %g s%s", call.text, names,
                late > 1 ? "have" : "has", seconds, more);
    } else {
        list(g, ranks, list_awaited(g, ranks), names, sizeof names);
        err_set(err, "%s: waits for %s, and has not ended within %g s%s", call.text,
                names, seconds, more);
    }
}
