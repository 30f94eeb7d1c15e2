/* worker/group/awaited.c - see group.h */
#include "worker/group/group.h"

#include "common/err.h"
#include "common/idset.h"
#include "common/mem.h"
#include "common/scoped.h"

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

enum { NAMED = 4 };

/* "rank 3 on node02, rank 5 on node02"; of many the numbers alone: "ranks 1,4-7,9". */
static void list(const struct ddp_group *g, const struct idset *ranks, char *text,
                 size_t size)
{
    long n = idset_count(ranks);
    size_t at = (size_t)snprintf(text, size, "%s", n ? "" : "the others");
    for (int r = 0; n <= NAMED && r < g->layout.size; r++) {
        if (idset_has(ranks, r))
            at += (size_t)snprintf(text + at, size - at, "%s%s", at > 0 ? ", " : "",
                                   layout_who(&g->layout, r).text);
    }
    if (n <= NAMED)
        return;
    OWNED char *all = idset_text(ranks);
    size_t most = size - sizeof "ranks ,...", fits = strlen(all);
    while (fits > most || (all[fits] && all[fits] != ',')) /* no part of a number */
        fits--;
    snprintf(text, size, "ranks %.*s%s", (int)fits, all, all[fits] ? ",..." : "");
}

/* Adds ranks that have not entered the current collective. Returns how many on other
 * hosts could not be asked. */
static int add_late(struct ddp_group *g, struct idset *ranks)
{
    const struct shm *s = g->shm;
    for (int i = 0; s && g->colls.first && i < s->n; i++) {
        bool late = watch_blind(g)
                        ? !watch_came(g, i)
                        : awaited_coll(g) &&
                              atomic_load(&s->rank[i].post[s->seq & 1].seq) != s->seq;
        if (late)
            idset_add(ranks, s->ranks[i], s->ranks[i]);
    }
    return g->tcp && g->colls.first ? tcp_ask(g->tcp, g->colls.first->coll.number, ranks)
                                    : 0;
}

/* Adds ranks that data are expected from; they may be waiting themselves. */
static void add_awaited(const struct ddp_group *g, struct idset *ranks)
{
    int me = g->layout.rank;
    if (p2p_awaits(g, me) == AWAITED) /* a message to itself */
        idset_add(ranks, me, me);
    for (size_t i = 0; g->tcp && i < g->tcp->ninterests; i++)
        idset_add(ranks, g->tcp->interests[i].rank, g->tcp->interests[i].rank);
    for (int i = 0; g->shm && i < g->shm->n; i++) {
        if (i != g->shm->me && awaited_rank(g, i))
            idset_add(ranks, g->shm->ranks[i], g->shm->ranks[i]);
    }
}

bool group_tells_late(struct ddp_group *g, char *names, size_t size)
{
    int ignored, me = g->layout.rank, hosts = g->layout.nhosts;
    const int tellers[] = {0, 1, layout_host(&g->layout, hosts > 1, &ignored)[0]};
    SCOPED(idset_finish) struct idset late = {0};
    struct ddp_err why;
    bool tells = me == tellers[0] || me == tellers[1] || me == tellers[2];
    if (!tells)
        return false;
    add_late(g, &late);
    for (size_t i = 0; i < ARRAY_LEN(tellers); i++)
        tells &= tellers[i] >= me || idset_has(&late, tellers[i]);
    list(g, &late, names, size);
    return tells && idset_count(&late) > 0 && group_adopt_failure(g, &why) == 0;
}

void ddp_explain_wait(struct ddp_group *g, double seconds, struct ddp_err *err)
{
    char names[560], more[80] = "";
    struct phrase call = group_current_call(g);
    SCOPED(idset_finish) struct idset ranks = {0};
    int unasked = add_late(g, &ranks);
    long late = idset_count(&ranks);
    if (unasked == 0 && g->tcp && g->tcp->ninterests > 0) /* a message */
        unasked = tcp_answers(g->tcp, g->tcp->interests->rank) == TCP_NOT_ASKED;
    if (unasked > 0)
        snprintf(more, sizeof more,
                 "; %d could not be asked: too many open files (raise 'ulimit -n')",
                 unasked);
    if (late == 0)
        add_awaited(g, &ranks);
    list(g, &ranks, names, sizeof names);
    if (late > 0)
        err_set(err, "%s: %s %s not come within %g s%s", call.text, names,
                late > 1 ? "have" : "has", seconds, more);
    else
        err_set(err, "%s: waits for %s, and has not ended within %g s%s", call.text,
                names, seconds, more);
}
