/* worker/group/subgroup.c - groups made from others
 *
 * The members meet by messages of the group that they already are in: each sends its card
 * to the first of them, who sends all cards to each. Messages between two ranks arrive in
 * order, so that several groups, made one after the other, do not mix. The list of
 * members goes along as a number, so that those who disagree are told.
 */
#include "worker/group/subgroup.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "worker/group/meeting.h"
#include "worker/group/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CARD_ROOM = 512,
    MEETING = 16 /* what such a message is: no collective has that number */
};

struct card {
    uint64_t members; /* a number made of the list */
    char text[CARD_ROOM];
};

void group_leave_family(struct ddp_group *g)
{
    struct ddp_group *before = g->kin;
    while (before->kin != g)
        before = before->kin;
    before->kin = g->kin;
}

/* FNV-1a */
static uint64_t number_of(const int *ranks, int n)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < n; i++)
        h = (h ^ (uint64_t)(unsigned)ranks[i]) * 1099511628211u;
    return h;
}

/* ---- the meeting ---- */

static void post(struct ddp_group *g, struct ddp_request *r, enum request_kind kind,
                 int peer, void *data, size_t bytes)
{
    *r = (struct ddp_request){.kind = kind,
                              .group = g,
                              .peer = peer,
                              .what = MEETING,
                              .data = data,
                              .bytes = bytes};
    if (kind == REQUEST_SEND)
        messages_send(g, r);
    else
        messages_recv(g, r);
}

/* One message with each other member at once. */
static int with_all(struct ddp_group *g, const int *ranks, int n, enum request_kind kind,
                    struct card *cards, size_t each, struct ddp_err *err)
{
    struct ddp_request *r = xcalloc((size_t)n, sizeof *r);
    int rc = 0;
    for (int i = 1; i < n; i++)
        post(g, &r[i], kind, ranks[i], kind == REQUEST_SEND ? cards : cards + i, each);
    for (int i = 1; i < n && rc == 0; i++)
        rc = group_wait(g, &r[i].ended, err);
    free(r);
    return rc;
}

static int exchange(struct ddp_group *g, const int *ranks, int n, int me,
                    struct card *cards, struct ddp_err *err)
{
    size_t all = (size_t)n * sizeof *cards;
    struct ddp_request r;
    if (me == 0) {
        int rc = with_all(g, ranks, n, REQUEST_RECV, cards, sizeof *cards, err);
        for (int i = 1; i < n && rc == 0; i++) {
            if (cards[i].members != cards[0].members) {
                err_set(err,
                        "ranks %d and %d disagree on who is in a group that both "
                        "make",
                        ranks[0], ranks[i]);
                return group_break(g, -1, err);
            }
        }
        return rc < 0 ? -1 : with_all(g, ranks, n, REQUEST_SEND, cards, all, err);
    }
    post(g, &r, REQUEST_SEND, ranks[0], &cards[me], sizeof *cards);
    if (group_wait(g, &r.ended, err) < 0)
        return -1;
    post(g, &r, REQUEST_RECV, ranks[0], cards, all);
    return group_wait(g, &r.ended, err);
}

/* Numbers in the outermost group. */
static int *outer_ranks(const struct ddp_group *g, const int *ranks, int n)
{
    int *outer = xcalloc((size_t)n, sizeof *outer);
    for (int i = 0; i < n; i++)
        outer[i] = g->layout.outer ? g->layout.outer[ranks[i]] : ranks[i];
    return outer;
}

static int meet_members(struct ddp_group *g, struct ddp_group *sub, const int *ranks,
                        int n, int me, struct meet_doors *doors, struct ddp_err *err)
{
    const struct member *self = &g->layout.members[g->layout.rank];
    struct card *cards = xcalloc((size_t)n, sizeof *cards);
    char host[32];
    snprintf(host, sizeof host, "host %d", self->host);
    char *text = meet_card_of(host, self->host_name, self->addr, doors);
    snprintf(cards[me].text, sizeof cards[me].text, "%s", text);
    cards[me].members = number_of(ranks, n);
    free(text);
    int rc = exchange(g, ranks, n, me, cards, err);
    if (rc == 0) {
        struct ddp_value *values = xcalloc((size_t)n, sizeof *values);
        for (int i = 0; i < n; i++)
            meeting_keep(&values[i], cards[i].text, strnlen(cards[i].text, CARD_ROOM));
        rc = meet(&sub->layout, me, n, values, err);
        if (rc == 0)
            sub->layout.outer = outer_ranks(g, ranks, n);
    }
    free(cards);
    return rc;
}

/* ---- making ---- */

static int place_in(const struct ddp_group *g, const int *ranks, int n,
                    struct ddp_err *err)
{
    int me = -1;
    if (n < 1 || n > g->layout.size)
        return err_set(err, "a group of %d out of %d ranks", n, g->layout.size);
    char *seen = xcalloc((size_t)g->layout.size, 1);
    for (int i = 0; i < n; i++) {
        int r = ranks[i];
        bool fine = r >= 0 && r < g->layout.size && !seen[r];
        if (!fine) {
            err_set(err,
                    r < 0 || r >= g->layout.size
                        ? "rank %d in a group made from %d ranks"
                        : "rank %d is twice in a group made from %d ranks",
                    r, g->layout.size);
            free(seen);
            return -1;
        }
        seen[r] = 1;
        if (r == g->layout.rank)
            me = i;
    }
    free(seen);
    return me < 0
               ? err_set(err, "rank %d makes a group that it is not in", g->layout.rank)
               : me;
}

static int settle(struct ddp_group *g, struct ddp_group *sub, const int *ranks, int n,
                  int me, struct ddp_err *err)
{
    struct meet_doors doors;
    if (meet_open(&doors, err) < 0)
        return -1;
    int rc = meet_members(g, sub, ranks, n, me, &doors, err);
    if (rc == 0)
        rc = group_settle(sub, &doors, now_ms() + sub->timeout_ms, err);
    meet_close(&doors);
    return rc;
}

struct ddp_group *ddp_group_sub(struct ddp_group *g, const int *ranks, int n,
                                struct ddp_err *err)
{
    int me;
    if (group_hear(g, err) < 0 || (me = place_in(g, ranks, n, err)) < 0)
        return NULL;
    struct ddp_group *sub = xcalloc(1, sizeof *sub);
    *sub = (struct ddp_group){.name = xasprintf("%s.%u", g->name, g->nsubgroups++),
                              .timeout_ms = g->timeout_ms,
                              .arena_bytes = g->arena_bytes,
                              .alone = g->alone,
                              .backend = g->backend,
                              .kin = g->kin};
    g->kin = sub;
    int rc = 0;
    if (n == 1)
        layout_single(&sub->layout);
    else
        rc = settle(g, sub, ranks, n, me, err);
    if (n == 1)
        sub->layout.outer = outer_ranks(g, ranks, n);
    if (rc == 0)
        rc = group_open_backend(sub, err);
    if (rc < 0) {
        if (!g->broken)
            err_prefix(err, "rank %d cannot make the group '%s'", g->layout.rank,
                       sub->name);
        ddp_group_destroy(sub);
        return NULL;
    }
    return sub;
}

struct wish {
    int32_t colour, key, rank;
};

static int by_wish(const void *a, const void *b)
{
    const struct wish *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

int ddp_group_split(struct ddp_group *g, int colour, int key, struct ddp_group **sub,
                    struct ddp_err *err)
{
    size_t size = (size_t)g->layout.size;
    int n = 0;
    struct wish mine = {colour, key, g->layout.rank};
    struct wish *all = xcalloc(size, sizeof *all);
    int *ranks = xcalloc(size, sizeof *ranks);
    *sub = NULL;
    int rc = group_share_all(g, &mine, all, sizeof mine, err);
    if (rc == 0 && colour >= 0) {
        qsort(all, size, sizeof *all, by_wish);
        for (size_t i = 0; i < size; i++) {
            if (all[i].colour == colour)
                ranks[n++] = all[i].rank;
        }
        *sub = ddp_group_sub(g, ranks, n, err);
        rc = *sub ? 0 : -1;
    }
    free(all);
    free(ranks);
    return rc;
}
