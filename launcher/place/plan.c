/* launcher/place/plan.c - see plan.h
 *
 * Three steps: how many ranks each node may have (caps), how many it gets (counts), and
 * their rank numbers. --map-by decides the last two.
 */
#include "launcher/place/plan.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/sock_addr.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct draft {
    const struct opts *opts;
    const struct alloc *alloc;
    const struct alloc_node **use; /* owned: nodes of the allocation that are used */
    size_t nnodes;
    int *caps;   /* owned; most ranks per node */
    int *counts; /* owned; ranks per node */
    long total;  /* sum of caps */
    int np;
    const char *np_from;
};

static const char *ranks(long n)
{
    return n == 1 ? "rank" : "ranks";
}

int plan_cap(const struct opts *opts, const struct alloc_node *node, int *cap,
             struct ddp_err *err)
{
    int wanted = node->per_node ? node->per_node : opts_per_node(opts);
    bool counted = node->slots_by == SLOTS_GIVEN || node->slots_by == SLOTS_GPUS;
    if (opts->per_gpu && (node->slots_by == SLOTS_DEFAULT || node->slots == 0))
        return err_set(err, "--nproc-per-node gpu, but '%s' has no GPU", node->name);
    *cap = wanted ? wanted : node->slots;
    if (*cap == 0) /* one local machine without GPU */
        *cap = opts->np ? opts->np : opts->start_np ? opts->start_np : 1;
    if (wanted > node->slots && counted && !opts->oversubscribe)
        return err_set(
            err,
            "%d ranks per node, but '%s' has %d slot%s (%s); --oversubscribe allows more",
            wanted, node->name, node->slots, node->slots == 1 ? "" : "s",
            node->slots_from);
    if (!wanted && node->slots_by == SLOTS_GIVEN && node->slots_else > 0 &&
        *cap > node->slots_else && !opts->oversubscribe)
        return err_set(err,
                       "%s, but '%s' has %d slot%s in the allocation; --oversubscribe "
                       "allows more",
                       node->slots_from, node->name, node->slots_else,
                       node->slots_else == 1 ? "" : "s");
    if (node->max_slots && *cap > node->max_slots)
        return err_set(err, "%d ranks on '%s', but its max_slots is %d", *cap, node->name,
                       node->max_slots);
    return 0;
}

static int compare_turns(const void *a, const void *b)
{
    const struct alloc_node *x = *(const struct alloc_node *const *)a,
                            *y = *(const struct alloc_node *const *)b;
    return x->turn != y->turn ? (x->turn > y->turn) - (x->turn < y->turn)
                              : (x > y) - (x < y);
}

/* The nodes that may get ranks, in their order; returns how many. */
static size_t find_nodes(struct draft *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->alloc->nnodes; i++) {
        if (!d->alloc->nodes[i].gone)
            d->use[n++] = &d->alloc->nodes[i];
    }
    qsort(d->use, n, sizeof(struct alloc_node *), compare_turns);
    return n;
}

/* As the user gave it: 4, or 2:4. */
static const char *nnodes_text(const struct opts *o, char *text, size_t size)
{
    if (o->min_nnodes > 0)
        snprintf(text, size, "%d:%d", o->min_nnodes, o->nnodes);
    else
        snprintf(text, size, "%d", o->nnodes);
    return text;
}

static int find_caps(struct draft *d, struct ddp_err *err)
{
    const struct opts *o = d->opts;
    char range[32];
    if (o->map_by == MAP_PPR && o->per_node && o->per_node != o->ppr)
        return err_set(err, "--map-by ppr:%d:node and --nproc-per-node %d disagree",
                       o->ppr, o->per_node);
    size_t there = find_nodes(d);
    if (o->min_nnodes > 0 && (size_t)o->min_nnodes > there)
        return err_set(err, "--nnodes %s, but there %s %zu host%s",
                       nnodes_text(o, range, sizeof range), there == 1 ? "is" : "are",
                       there, there == 1 ? "" : "s");
    /* one host may do for a range, but not where an address is given to meet others at */
    bool alone = strcmp(d->alloc->source, "local") == 0;
    bool meets = o->master_addr && !alloc_is_localhost(o->master_addr) &&
                 !sock_is_loopback(o->master_addr);
    if ((o->min_nnodes == 0 || (alone && meets)) && o->nnodes > 0 &&
        (size_t)o->nnodes > d->alloc->nnodes)
        return err_set(err, "--nnodes %s, but the allocation (%s) has %zu host%s%s",
                       nnodes_text(o, range, sizeof range), d->alloc->source,
                       d->alloc->nnodes, d->alloc->nnodes == 1 ? "" : "s",
                       alone ? "; -H or --hostfile names others, --node-rank K is for a "
                               "ddprun on each"
                             : "");
    size_t spares = (size_t)o->spares;
    if (spares > 0 && !d->alloc->changes &&
        (size_t)o->nnodes + spares >= d->alloc->nnodes + (o->nnodes > 0))
        return err_set(err, "--spares %d%s, but the allocation (%s) has %zu host%s",
                       o->spares, o->nnodes ? " beside --nnodes" : "", d->alloc->source,
                       d->alloc->nnodes, d->alloc->nnodes == 1 ? "" : "s");
    size_t most = o->nnodes ? (size_t)o->nnodes : d->alloc->nnodes - spares;
    for (; d->nnodes < there && d->nnodes < most; d->nnodes++) {
        if (o->max_np && d->total >= o->max_np)
            break;
        TRY(plan_cap(o, d->use[d->nnodes], &d->caps[d->nnodes], err));
        d->total += d->caps[d->nnodes];
    }
    return 0;
}

static int find_np(struct draft *d, struct ddp_err *err)
{
    const struct opts *o = d->opts;
    d->np = o->np;
    d->np_from = "-np";
    if (!d->np) {
        if (d->total > INT_MAX)
            return err_set(err, "%ld slots are more ranks than can be counted", d->total);
        d->np = (int)d->total;
        d->np_from = o->map_by == MAP_PPR           ? "--map-by ppr, on each host"
                     : o->per_node                  ? "--nproc-per-node, on each host"
                     : d->alloc->nodes[0].slots > 0 ? "the slots of all hosts"
                     : o->start_np > 1              ? "-np or --min-np"
                                                    : "no -np, no GPU";
        if (o->max_np && d->np > o->max_np) {
            d->np = o->max_np;
            d->np_from = "--max-np";
        }
        if (d->np < o->min_np)
            return err_set(err, "the hosts have %d %s, but --min-np is %d", d->np,
                           ranks(d->np), o->min_np);
    }
    if (o->nnodes && (size_t)d->np < d->nnodes)
        return err_set(err, "%d %s cannot fill --nnodes %d", d->np, ranks(d->np),
                       o->nnodes);
    if (d->np <= d->total || o->oversubscribe)
        return 0;
    if (opts_per_node(o) && d->total == (long)opts_per_node(o) * (long)d->nnodes)
        return err_set(
            err,
            "%d ranks, but %d on each of %zu host%s make %ld; --oversubscribe "
            "allows more%s",
            d->np, opts_per_node(o), d->nnodes, d->nnodes == 1 ? "" : "s", d->total,
            o->letter_n ? ", and the number of hosts is --nnodes, not -N" : "");
    return err_set(err,
                   "%d ranks, but %zu host%s %ld slot%s; --oversubscribe allows more, "
                   "%s sets the slots",
                   d->np, d->nnodes, d->nnodes == 1 ? " has" : "s have", d->total,
                   d->total == 1 ? "" : "s",
                   d->alloc->slots_hint ? d->alloc->slots_hint : "slots=N or host:N");
}

/* Round robin: one rank on each node with room, repeatedly. */
static void place_round_robin(struct draft *d, int left)
{
    while (left > 0) {
        for (size_t i = 0; i < d->nnodes && left > 0; i++) {
            if (d->counts[i] < d->caps[i]) {
                d->counts[i]++;
                left--;
            }
        }
    }
}

/* --oversubscribe: fill each node's slots, repeatedly, up to max_slots. */
static int place_oversubscribed(struct draft *d, struct ddp_err *err)
{
    int left = d->np, before;
    do {
        before = left;
        for (size_t i = 0; i < d->nnodes && left > 0; i++) {
            int hard = d->use[i]->max_slots, more = d->caps[i];
            if (hard && more > hard - d->counts[i])
                more = hard - d->counts[i];
            more = more < left ? more : left;
            d->counts[i] += more;
            left -= more;
        }
    } while (left > 0 && left < before);
    if (left == 0)
        return 0;
    return err_set(err, "%d ranks, but max_slots of all hosts together is %d", d->np,
                   d->np - left);
}

/* The number of ranks on each node. With --nnodes they are spread evenly; else "block"
 * fills one node after the other. */
static int find_counts(struct draft *d, struct ddp_err *err)
{
    int left = d->np;
    if (d->np > d->total)
        return place_oversubscribed(d, err);
    if (d->opts->map_by == MAP_CYCLIC || (d->opts->nnodes && d->opts->np)) {
        place_round_robin(d, left);
        return 0;
    }
    for (size_t i = 0; i < d->nnodes && left > 0; i++) {
        d->counts[i] = left < d->caps[i] ? left : d->caps[i];
        left -= d->counts[i];
    }
    return 0;
}

static void number_across(struct plan *p)
{
    int widest = 0;
    for (int i = 0; i < p->nnodes; i++)
        widest = p->nodes[i].nlocal > widest ? p->nodes[i].nlocal : widest;
    free(p->cross_sizes);
    p->cross_sizes = xcalloc((size_t)widest, sizeof *p->cross_sizes);
    for (int i = 0; i < p->nnodes; i++) {
        for (int k = 0; k < p->nodes[i].nlocal; k++)
            p->ranks[p->nodes[i].ranks[k]].cross_rank = p->cross_sizes[k]++;
    }
}

static struct plan *number_ranks(const struct draft *d)
{
    struct plan *p = xcalloc(1, sizeof *p);
    p->nranks = d->np;
    p->np_from = d->np_from;
    p->ranks = xcalloc((size_t)d->np, sizeof *p->ranks);
    p->nodes = xcalloc(d->nnodes, sizeof *p->nodes);
    for (size_t i = 0; i < d->nnodes; i++) {
        if (d->counts[i] == 0)
            continue;
        struct plan_node *n = &p->nodes[p->nnodes++];
        n->host = d->use[i];
        n->nlocal = d->counts[i];
        n->ranks = xcalloc((size_t)n->nlocal, sizeof *n->ranks);
    }
    /* block: all ranks of a node in sequence; cyclic: one per node, repeatedly */
    bool cyclic = d->opts->map_by == MAP_CYCLIC;
    int *dealt = xcalloc((size_t)p->nnodes, sizeof *dealt);
    for (int rank = 0, node = 0; rank < p->nranks;) {
        struct plan_node *n = &p->nodes[node];
        int stop = cyclic ? dealt[node] + 1 : n->nlocal;
        for (; dealt[node] < stop && dealt[node] < n->nlocal; rank++) {
            p->ranks[rank] = (struct plan_rank){.node = node, .local_rank = dealt[node]};
            n->ranks[dealt[node]++] = rank;
        }
        node = (node + 1) % p->nnodes;
    }
    free(dealt);
    number_across(p);
    return p;
}

struct plan *plan_make(const struct opts *opts, const struct alloc *alloc,
                       struct ddp_err *err)
{
    struct draft d = {.opts = opts, .alloc = alloc};
    struct plan *p = NULL;
    d.use = xcalloc(alloc->nnodes, sizeof *d.use);
    d.caps = xcalloc(alloc->nnodes, sizeof *d.caps);
    d.counts = xcalloc(alloc->nnodes, sizeof *d.counts);
    if (find_caps(&d, err) == 0 && find_np(&d, err) == 0 && find_counts(&d, err) == 0)
        p = number_ranks(&d);
    free(d.use);
    free(d.caps);
    free(d.counts);
    return p;
}

int plan_add_node(struct plan *p, const struct alloc_node *host, int nlocal)
{
    struct plan_node n = {.host = host, .nlocal = nlocal};
    size_t ranks = (size_t)(p->nranks + n.nlocal);
    n.ranks = xcalloc((size_t)n.nlocal, sizeof *n.ranks);
    p->ranks = xrealloc(p->ranks, ranks, sizeof *p->ranks);
    for (int i = 0; i < n.nlocal; i++) {
        n.ranks[i] = p->nranks;
        p->ranks[p->nranks++] = (struct plan_rank){.node = p->nnodes, .local_rank = i};
    }
    p->nodes = xrealloc(p->nodes, (size_t)p->nnodes + 1, sizeof *p->nodes);
    p->nodes[p->nnodes++] = n;
    number_across(p);
    return p->nnodes - 1;
}

void plan_destroy(struct plan *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->nnodes; i++)
        free(p->nodes[i].ranks);
    free(p->nodes);
    free(p->ranks);
    free(p->cross_sizes);
    free(p);
}

int plan_cross_size(const struct plan *p, int rank)
{
    return p->cross_sizes[p->ranks[rank].local_rank];
}
