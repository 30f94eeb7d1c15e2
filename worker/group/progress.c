/* worker/group/progress.c - advancing, waiting, and what can go wrong meanwhile
 *
 * A wait first spins, since the others are mostly a few microseconds away, then sleeps
 * until the rank that lags wakes it. Every LOOK_MS of sleep it looks whether those that
 * it waits for still live. The first failure that a rank of this host finds is written
 * into the shared memory, so that all tell the same cause.
 */
#include "worker/group/group.h"

#include "common/duration.h"
#include "common/err.h"

#include <stdio.h>
#include <string.h>

enum { LOOK_MS = 100 };

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int group_break(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    if (!g->broken) {
        g->broken = true;
        g->why = *err;
        g->first = g->last = NULL; /* each is told when it is tested or waited for */
        if (g->shm)
            shm_fail(g->shm, culprit, err->text);
    }
    *err = g->why;
    return -1;
}

static void end_first(struct ddp_group *g)
{
    struct ddp_request *r = g->first;
    g->first = r->next;
    if (!g->first)
        g->last = NULL;
    r->ended = true;
}

int group_progress(struct ddp_group *g, struct ddp_err *err)
{
    if (g->broken) {
        *err = g->why;
        return -1;
    }
    while (g->first) {
        int rc = g->shm ? local_advance(g->shm, &g->first->coll, err) : ADVANCE_DONE;
        if (rc == ADVANCE_LATER)
            return 0;
        if (rc == ADVANCE_ERROR)
            return group_break(g, -1, err);
        end_first(g);
    }
    return 0;
}

/* ---- waiting ---- */

struct sleeper {
    struct ddp_group *g;
    int lagging;
};

static bool something_to_do(void *arg)
{
    const struct sleeper *z = arg;
    struct shm *s = z->g->shm;
    const struct coll *c = &z->g->first->coll;
    bool all = c->state == COLL_ANNOUNCED ? shm_all_posted(s) : shm_all_stepped(s);
    return all || s->arrived != z->lagging || atomic_load(&s->head->failed) != 0;
}

/* Whom the first collective waits for: "rank 3 on node02, rank 5 on node02". */
static void name_missing(const struct ddp_group *g, char *text, size_t size)
{
    const struct shm *s = g->shm;
    int missing = 0;
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < s->n; i++) {
        char who[100];
        if (local_reached(s, &g->first->coll, i))
            continue;
        if (++missing <= 4)
            n += (size_t)snprintf(text + n, size - n, "%s%s", missing > 1 ? ", " : "",
                                  layout_who(&g->layout, s->ranks[i], who, sizeof who));
    }
    if (missing > 4)
        snprintf(text + n, size - n, " and %d more", missing - 4);
}

static int look_around(struct ddp_group *g, struct ddp_err *err)
{
    struct shm *s = g->shm;
    const struct coll *c = &g->first->coll;
    for (int i = 0; i < s->n; i++) {
        bool left = false;
        if (i == s->me || local_reached(s, c, i) || !shm_is_gone(s, i, &left) ||
            local_reached(s, c, i)) /* it may have done its part and gone just now */
            continue;
        char who[100], what[64];
        layout_who(&g->layout, s->ranks[i], who, sizeof who);
        coll_name(c, what, sizeof what);
        err_set(err,
                left ? "%s has left the group (%s waits for it)"
                     : "%s has gone (its process ended) during %s",
                who, what);
        return group_break(g, s->ranks[i], err);
    }
    return 0;
}

static int expired(struct ddp_group *g, struct ddp_err *err)
{
    char missing[400], what[64];
    name_missing(g, missing, sizeof missing);
    err_set(err, "%s: not arrived within %g s: %s",
            coll_name(&g->first->coll, what, sizeof what), (double)g->timeout_ms / 1000,
            missing);
    return group_break(g, -1, err);
}

static int sleep_a_while(struct ddp_group *g, int64_t *began, int64_t *looked,
                         struct ddp_err *err)
{
    struct shm *s = g->shm;
    int64_t now = now_ms();
    if (*began == 0)
        *began = *looked = now;
    int culprit;
    struct ddp_err theirs;
    if (shm_failed(s, &culprit, &theirs)) {
        if (group_progress(g, err) < 0) /* what failed may not concern this collective */
            return -1;
        *err = theirs;
        return g->first ? group_break(g, culprit, err) : 0;
    }
    if (now - *looked >= LOOK_MS) {
        *looked = now;
        if (look_around(g, err) < 0)
            return -1;
    }
    if (now - *began >= g->timeout_ms)
        return expired(g, err);
    struct sleeper z = {g, s->arrived < s->n ? s->arrived : 0};
    shm_sleep(s, (unsigned)z.lagging, LOOK_MS, something_to_do, &z);
    return 0;
}

int group_wait(struct ddp_group *g, const bool *ended, struct ddp_err *err)
{
    struct ddp_err unwanted;
    int64_t began = 0, looked = 0, spun = 0;
    err = err ? err : &unwanted;
    for (;;) {
        for (int i = 0; i < 100; i++) {
            if (group_progress(g, err) < 0)
                return -1;
            if (*ended)
                return 0;
            cpu_relax();
        }
        int64_t now = now_ns();
        spun = spun ? spun : now;
        if (now - spun < g->shm->spin_ns)
            continue;
        if (sleep_a_while(g, &began, &looked, err) < 0)
            return -1;
    }
}
