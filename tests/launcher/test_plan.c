#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/alloc/source.h"
#include "launcher/place/plan.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "n1:4 n2:2/8 n3": slots and max_slots; without slots the node reported no
 * GPU. */
static struct alloc *alloc_of(const char *text)
{
    struct alloc *a = xcalloc(1, sizeof *a);
    a->source = "hostfile";
    char *copy = xstrdup(text), *save = NULL;
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char name[32];
        int slots = 0, max = 0;
        sscanf(w, "%31[^:]:%d/%d", name, &slots, &max);
        struct alloc_node *n = alloc_add(a, name);
        n->slots = slots;
        n->max_slots = max;
        n->slots_by = slots ? SLOTS_GIVEN : SLOTS_UNSET;
        n->slots_from = slots ? xasprintf("hosts:%zu", a->nnodes) : NULL;
    }
    free(copy);
    for (size_t i = 0; i < a->nnodes; i++)
        alloc_resolve(a, i, 0);
    return a;
}

/* "n1: 0 1; n2: 2 3" */
static char *describe(const struct plan *p)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    for (int i = 0; i < p->nnodes; i++) {
        fprintf(f, "%s%s:", i ? "; " : "", p->nodes[i].host->name);
        for (int k = 0; k < p->nodes[i].nlocal; k++)
            fprintf(f, " %d", p->nodes[i].ranks[k]);
    }
    fclose(f);
    return text;
}

static const struct {
    const char *hosts;
    struct opts opts;
    const char *plan, *error;
} cases[] = {
    {"a:2 b:2", {.np = 0}, "a: 0 1; b: 2 3", NULL},
    {"a:2 b:2", {.np = 3}, "a: 0 1; b: 2", NULL},
    {"a:2 b:2", {.np = 1}, "a: 0", NULL},
    {"a:2 b:3", {.np = 5, .map_by = MAP_CYCLIC}, "a: 0 2; b: 1 3 4", NULL},
    {"a:4 b:4", {.np = 4, .map_by = MAP_CYCLIC}, "a: 0 2; b: 1 3", NULL},
    {"a:4 b:4", {.map_by = MAP_PPR, .ppr = 2}, "a: 0 1; b: 2 3", NULL},
    {"a:4 b:4", {.np = 3, .map_by = MAP_PPR, .ppr = 2}, "a: 0 1; b: 2", NULL},
    {"a:4 b:4", {.per_node = 1}, "a: 0; b: 1", NULL},
    {"a b", {.per_node = 3}, "a: 0 1 2; b: 3 4 5", NULL}, /* no slots given */
    {"a b", {.np = 2}, "a: 0; b: 1", NULL},
    {"a:2 b", {.per_gpu = true}, NULL, "--nproc-per-node gpu, but 'b' has no GPU"},
    {"a:2", {.per_gpu = true}, "a: 0 1", NULL},
    {"a:4 b:4 c:4", {.nnodes = 2}, "a: 0 1 2 3; b: 4 5 6 7", NULL},
    {"a:4 b:4 c:4", {.nnodes = 2, .np = 4}, "a: 0 1; b: 2 3", NULL}, /* evenly */
    {"a:4 b:4", {.nnodes = 2, .per_node = 2}, "a: 0 1; b: 2 3", NULL},
    {"a:2 b:2", {.np = 8, .oversubscribe = true}, "a: 0 1 2 3; b: 4 5 6 7", NULL},
    {"a:1 b:3", {.np = 8, .oversubscribe = true}, "a: 0 1; b: 2 3 4 5 6 7", NULL},
    {"a:2/3 b:2", {.np = 8, .oversubscribe = true}, "a: 0 1 2; b: 3 4 5 6 7", NULL},
    {"a:2", {.per_node = 4, .oversubscribe = true}, "a: 0 1 2 3", NULL},
    {"a:2 b:2",
     {.np = 5},
     NULL,
     "5 ranks, but 2 hosts have 4 slots; --oversubscribe allows more, slots=N or host:N "
     "sets the slots"},
    {"a:1",
     {.np = 2},
     NULL,
     "2 ranks, but 1 host has 1 slot; --oversubscribe allows more, slots=N or host:N sets "
     "the slots"},
    {"a:2/2 b:2/3",
     {.np = 6, .oversubscribe = true},
     NULL,
     "6 ranks, but max_slots of all hosts together is 5"},
    {"a:2",
     {.per_node = 4},
     NULL,
     "4 ranks per node, but 'a' has 2 slots (hosts:1); --oversubscribe allows more"},
    {"a:2/3",
     {.per_node = 4, .oversubscribe = true},
     NULL,
     "4 ranks on 'a', but its max_slots is 3"},
    {"a:8",
     {.np = 5, .per_node = 2},
     NULL,
     "5 ranks, but 2 on each of 1 host make 2; --oversubscribe allows more"},
    {"a:8 b:8",
     {.np = 5, .per_node = 2},
     NULL,
     "5 ranks, but 2 on each of 2 hosts make 4; --oversubscribe allows more"},
    {"a:8",
     {.map_by = MAP_PPR, .ppr = 2, .per_node = 4},
     NULL,
     "--map-by ppr:2:node and --nproc-per-node 4 disagree"},
    {"a:8", {.nnodes = 2}, NULL, "--nnodes 2, but the allocation (hostfile) has 1 host"},
    {"a:8 b:8", {.nnodes = 2, .np = 1}, NULL, "1 rank cannot fill --nnodes 2"},
};

LOOP_TEST(ranks_are_placed_or_rejected, ARRAY_LEN(cases))
{
    struct ddp_err err = {""};
    struct alloc *a = alloc_of(cases[_i].hosts);
    struct plan *p = plan_make(&cases[_i].opts, a, &err);
    if (cases[_i].error) {
        ck_assert_ptr_null(p);
        ck_assert_str_eq(err.text, cases[_i].error);
    } else {
        ck_assert_msg(p != NULL, "%s", err.text);
        char *text = describe(p);
        ck_assert_str_eq(text, cases[_i].plan);
        free(text);
    }
    plan_destroy(p);
    alloc_destroy(a);
}

/* torchrun's "--nnodes 1:4 --rdzv-endpoint node1", on each of four hosts: not four jobs.
 */
static const struct {
    const char *at;
    bool alone;
} masters[] = {{NULL, true},        {"localhost", true}, {"ip6-localhost", true},
               {"127.0.0.1", true}, {"::1", true},       {"node1", false}};

LOOP_TEST(a_range_of_hosts_that_meet_is_not_this_machine, ARRAY_LEN(masters))
{
    struct ddp_err err = {""};
    const struct opts opts = {
        .min_nnodes = 1, .nnodes = 4, .master_addr = masters[_i].at, .node_rank = -1};
    struct alloc *a = alloc_read(&opts, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    struct plan *p = plan_make(&opts, a, &err);
    ck_assert_int_eq(p != NULL, masters[_i].alone);
    ck_assert(p ||
              strstr(err.text, "--nnodes 1:4, but the allocation (local) has 1 host; "));
    plan_destroy(p);
    alloc_destroy(a);
}

/* One local machine without GPU: -np alone decides, and one rank without it. */
TEST(without_hosts_np_decides)
{
    struct ddp_err err = {""};
    static const struct {
        int np, per_node, ngpus, expected, start_np;
    } table[] = {{0, 0, 0, 1},    {7, 0, 0, 7},   {0, 3, 0, 3}, {0, 0, 4, 4},
                 {2, 0, 4, 2},    {5, 0, 4, -1},  {0, 2, 4, 2}, {0, 5, 4, -1},
                 {0, 0, 0, 3, 3}, {0, 0, 4, 4, 3}};
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        const struct opts opts = {.np = table[i].np,
                                  .per_node = table[i].per_node,
                                  .start_np = table[i].start_np};
        struct alloc *a = alloc_read(&opts, &err);
        ck_assert_msg(a != NULL, "%s", err.text);
        alloc_resolve(a, 0, table[i].ngpus);
        struct plan *p = plan_make(&opts, a, &err);
        ck_assert_int_eq(p ? p->nranks : -1, table[i].expected);
        plan_destroy(p);
        alloc_destroy(a);
    }
}

/* Invariants of every plan. */
static void check_numbers(const struct plan *p)
{
    int seen = 0, cross[64] = {0};
    for (int n = 0; n < p->nnodes; n++) {
        const struct plan_node *pn = &p->nodes[n];
        for (int k = 0; k < pn->nlocal; k++, seen++) {
            int rank = pn->ranks[k];
            ck_assert(rank >= 0 && rank < p->nranks);
            ck_assert_int_eq(p->ranks[rank].node,
                             n); /* both sides agree: each rank once */
            ck_assert_int_eq(p->ranks[rank].local_rank, k);
            if (k > 0)
                ck_assert_int_gt(rank, pn->ranks[k - 1]);
            ck_assert_int_eq(p->ranks[rank].cross_rank, cross[k]++);
        }
    }
    ck_assert_int_eq(seen, p->nranks);
    for (int r = 0; r < p->nranks; r++)
        ck_assert_int_eq(plan_cross_size(p, r), cross[p->ranks[r].local_rank]);
}

static void check_plan(const struct opts *o, const struct alloc *a, const struct plan *p)
{
    ck_assert_int_eq(p->ranks[0].node, 0);
    ck_assert_int_eq(p->ranks[0].local_rank, 0);
    for (int n = 0; n < p->nnodes; n++) {
        const struct plan_node *pn = &p->nodes[n];
        ck_assert_int_gt(pn->nlocal, 0);
        ck_assert(pn->host >= a->nodes && pn->host < a->nodes + a->nnodes);
        if (n > 0)
            ck_assert(pn->host > p->nodes[n - 1].host); /* in the order of the hosts */
        if (!o->oversubscribe && pn->host->slots_by == SLOTS_GIVEN)
            ck_assert_int_le(pn->nlocal, pn->host->slots);
        if (pn->host->max_slots)
            ck_assert_int_le(pn->nlocal, pn->host->max_slots);
    }
    if (o->np)
        ck_assert_int_eq(p->nranks, o->np);
    check_numbers(p);
}

static const char *const allocations[] = {
    "a:1",         "a:4",     "a:1 b:1 c:1",    "a:4 b:2 c:7",
    "a:2/5 b:1/1", "a b c d", "a:8 b:8 c:8 d:8"};

LOOP_TEST(invariants_of_every_plan, ARRAY_LEN(allocations))
{
    struct alloc *a = alloc_of(allocations[_i]);
    int made = 0, refused = 0;
    for (int np = 0; np <= 20; np++) {
        for (int mode = 0; mode < 3 * 2 * 4 * 4; mode++) {
            struct opts o = {.np = np,
                             .map_by = (enum map_by)(mode % 3),
                             .oversubscribe = mode / 3 % 2,
                             .nnodes = mode / 6 % 4,
                             .per_node = mode / 24};
            o.ppr = o.map_by == MAP_PPR ? o.per_node ? o.per_node : 2 : 0;
            struct ddp_err err = {""};
            struct plan *p = plan_make(&o, a, &err);
            if (p) {
                check_plan(&o, a, p);
                int before = p->nranks;
                ck_assert_int_eq(plan_add_node(p, &a->nodes[0], 1 + np % 4),
                                 p->nnodes - 1);
                ck_assert_int_eq(p->nodes[p->nnodes - 1].ranks[0], before);
                check_numbers(p);
            } else {
                ck_assert_int_gt((int)strlen(err.text), 10);
            }
            made += p != NULL;
            refused += p == NULL;
            plan_destroy(p);
        }
    }
    ck_assert_int_gt(made, 100);
    ck_assert_int_gt(refused, 100);
    alloc_destroy(a);
}
