/* launcher/plugins/diagnose/lateness.c - see lateness.h
 *
 * Collectives that overlap, as the buckets of a backward pass, are one round: a rank that
 * is late in the first is late in all of them. A round ends when no rank has entered the
 * next collective before the last one has entered this; its lags are those of its last
 * collective, and its span is the time since the end of the round before.
 *
 * A rank is a straggler if, in the last K rounds, for any K:
 *  - the sum of its lags exceeds that of the median rank by the given share of the time,
 *    and is a multiple of it: on a busy machine all are late sometimes;
 *  - it is late more often than chance explains. A round has the weight of its largest
 *    lag, and a rank is late in it if its lag is at least half of that. The number of
 *    rounds that count is m = (sum w)^2 / sum w^2, so that one long pause counts as one
 *    round; f is the part of them in which this rank is late, p the mean of all ranks.
 *    m * KL(f || p) bounds the logarithm of the probability of a coincidence (Chernoff),
 *    which may be the smaller the more ranks there are to be found by one.
 *  - m is at least ROUNDS_MIN, and the rounds are from PERSISTS_NS or more: what lasts a
 *    moment, as the scheduler's imbalance on a busy machine, is not reported.
 */
#include "launcher/plugins/diagnose/lateness.h"

#include "common/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CONTENDED_PERCENT = 20, EXPLAINED = 3 };
enum { RING = 256, ROUNDS = 512, ROUNDS_MIN = 8, SUSPECT_MIN = 5, LAG_ROUNDS = 16 };
static const double EVIDENCE = 11.9; /* that any rank is found: 1 in 150,000 */
static const double MULTIPLE = 2.5;
static const int64_t PERSISTS_NS = INT64_C(1500000000);

struct member {
    int rank;
    uint64_t last; /* the largest number that it has entered */
    struct entry {
        uint64_t number;
        int64_t at_ns;
    } ring[RING]; /* by number */
};

struct round {
    int64_t end_ns, span_ns;
};

struct group {
    uint64_t id, next;       /* next: the collective to be examined */
    struct member **members; /* owned */
    size_t n;
    /* the round that is not complete: NULL lags: none */
    uint64_t number;   /* its last collective */
    int64_t end_ns;    /* when the last rank entered that */
    int64_t before_ns; /* end of the round before; 0: unknown */
    bool open;
    int64_t *lags;        /* owned: of that collective, by member */
    struct round *rounds; /* owned: ROUNDS of them, the last at (nrounds - 1) % ROUNDS */
    uint32_t *history;    /* owned: lags of each, in microseconds */
    uint64_t nrounds;
    struct group *next_group;
};

struct lateness {
    int nranks;
    double share;
    bool suspects;
    struct group *groups; /* owned */
    struct rank_lag {
        uint64_t entered;
        int64_t lag_ns;
        int node;
        int64_t error_ns; /* of its clock */
    } * ranks;            /* owned */
};

struct lateness *lateness_create(int nranks, double share)
{
    struct lateness *l = xcalloc(1, sizeof *l);
    l->nranks = nranks;
    l->share = share;
    l->ranks = xcalloc((size_t)nranks + 1, sizeof *l->ranks);
    return l;
}

static void forget_rounds(struct group *g)
{
    free(g->lags);
    free(g->rounds);
    free(g->history);
    g->lags = xcalloc(g->n, sizeof *g->lags);
    g->rounds = xcalloc(ROUNDS, sizeof *g->rounds);
    g->history = xcalloc(ROUNDS * g->n, sizeof *g->history);
    g->nrounds = g->next = 0;
    g->before_ns = 0;
    g->open = false;
}

void lateness_destroy(struct lateness *l)
{
    for (struct group *g = l ? l->groups : NULL, *next; g; g = next) {
        next = g->next_group;
        for (size_t i = 0; i < g->n; i++)
            free(g->members[i]);
        free(g->members);
        free(g->lags);
        free(g->rounds);
        free(g->history);
        free(g);
    }
    if (l)
        free(l->ranks);
    free(l);
}

/* --- entries ------------------------------------------------------------------------ */

static struct group *group_of(struct lateness *l, uint64_t id)
{
    struct group *g = l->groups;
    while (g && g->id != id)
        g = g->next_group;
    if (!g) {
        g = xcalloc(1, sizeof *g);
        *g = (struct group){.id = id, .next_group = l->groups};
        l->groups = g;
    }
    return g;
}

/* Members are sorted by rank, and found by a search from where the last one was. */
static struct member *member_of(struct group *g, int rank)
{
    size_t lo = 0, hi = g->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (g->members[mid]->rank < rank)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < g->n && g->members[lo]->rank == rank)
        return g->members[lo];
    struct member *m = xcalloc(1, sizeof *m);
    m->rank = rank;
    g->members = xrealloc(g->members, g->n + 1, sizeof(struct member *));
    memmove(g->members + lo + 1, g->members + lo, (g->n - lo) * sizeof(struct member *));
    g->members[lo] = m;
    g->n++;
    forget_rounds(g);
    return m;
}

void lateness_add(struct lateness *l, int rank, uint64_t group, uint64_t number,
                  int64_t at_ns)
{
    const int64_t most = INT64_MAX / 4; /* so that no difference overflows */
    if (rank < 0 || rank >= l->nranks || number == 0 || number > (uint64_t)most ||
        at_ns < 0 || at_ns > most)
        return;
    struct member *m = member_of(group_of(l, group), rank);
    struct entry *e = &m->ring[number % RING];
    if (e->number >= number)
        return;
    *e = (struct entry){number, at_ns};
    if (number > m->last) {
        l->ranks[rank].entered += number - m->last;
        m->last = number;
    }
}

void lateness_clock(struct lateness *l, int rank, int node, int64_t error_ns)
{
    l->ranks[rank].node = node;
    l->ranks[rank].error_ns = error_ns;
}

void lateness_forget(struct lateness *l)
{
    for (struct group *g = l->groups; g; g = g->next_group) {
        forget_rounds(g);
        for (size_t i = 0; i < g->n; i++)
            memset(g->members[i]->ring, 0, sizeof g->members[i]->ring);
    }
}

/* --- rounds ------------------------------------------------------------------------- */

struct arrival {
    int64_t at_ns;
    size_t member;
};

static int by_time(const void *a, const void *b)
{
    int64_t x = ((const struct arrival *)a)->at_ns,
            y = ((const struct arrival *)b)->at_ns;
    return (x > y) - (x < y);
}

/* Returns the number of rounds with the open one, if it is known how long that is. */
static uint64_t keep_round(struct group *g)
{
    if (!g->open || !g->before_ns)
        return g->nrounds;
    size_t at = g->nrounds % ROUNDS;
    g->rounds[at] = (struct round){g->end_ns, g->end_ns - g->before_ns};
    for (size_t i = 0; i < g->n; i++)
        g->history[at * g->n + i] = (uint32_t)(g->lags[i] / 1000);
    return g->nrounds + 1;
}

static int64_t lag_of(const struct lateness *l, const struct group *g,
                      const struct arrival *of, const struct arrival *median)
{
    const struct rank_lag *a = &l->ranks[g->members[of->member]->rank],
                          *b = &l->ranks[g->members[median->member]->rank];
    int64_t lag = of->at_ns - median->at_ns;
    lag -= a->node == b->node ? 0 : a->error_ns + b->error_ns;
    return lag > 0 ? lag : 0;
}

/* All have entered `number`, at these times. */
static void take_collective(const struct lateness *l, struct group *g, uint64_t number,
                            struct arrival *times)
{
    qsort(times, g->n, sizeof *times, by_time);
    if (!g->open || g->number + 1 != number) {
        g->before_ns = 0;
    } else if (times[0].at_ns > g->end_ns) {
        g->nrounds = keep_round(g);
        g->before_ns = g->end_ns;
    }
    for (size_t i = 0; i < g->n; i++)
        g->lags[times[i].member] = lag_of(l, g, &times[i], &times[(g->n - 1) / 2]);
    g->open = true;
    g->number = number;
    g->end_ns = times[g->n - 1].at_ns;
}

/* Returns how many collectives were new. */
static size_t take_new(const struct lateness *l, struct group *g)
{
    uint64_t last = UINT64_MAX, first = 0;
    size_t taken = 0;
    for (size_t i = 0; i < g->n; i++) {
        last = g->members[i]->last < last ? g->members[i]->last : last;
        first = g->members[i]->last > first ? g->members[i]->last : first;
    }
    first = first > RING ? first - RING + 1 : 1;
    first = g->next > first ? g->next : first;
    OWNED struct arrival *times = xcalloc(g->n, sizeof *times);
    for (uint64_t number = first; number <= last; number++) {
        size_t i = 0;
        for (; i < g->n && g->members[i]->ring[number % RING].number == number; i++)
            times[i] = (struct arrival){g->members[i]->ring[number % RING].at_ns, i};
        if (i < g->n)
            continue; /* not reported by all */
        take_collective(l, g, number, times);
        taken++;
    }
    if (last >= first)
        g->next = last + 1;
    return taken;
}

/* --- late ranks ----------------------------------------------------------------------
 */

struct sums {
    double w, w2, late; /* late: w times the share of ranks that are late */
    double span;        /* and lags: microseconds */
    unsigned rounds;
    struct sum {
        double lag, weight; /* weight: of the rounds in which it is late */
        unsigned times;     /* how many those are */
    } * of;                 /* owned, by member */
};

static void add_round(const struct group *g, size_t at, struct sums *s)
{
    const uint32_t *lags = g->history + at * g->n;
    uint32_t most = 0;
    size_t nlate = 0;
    for (size_t i = 0; i < g->n; i++)
        most = lags[i] > most ? lags[i] : most;
    double w = (double)most;
    for (size_t i = 0; i < g->n; i++) {
        s->of[i].lag += (double)lags[i];
        if (most == 0 || (uint64_t)lags[i] * 2 < most)
            continue;
        s->of[i].weight += w;
        s->of[i].times++;
        nlate++;
    }
    s->w += w;
    s->w2 += w * w;
    s->late += w * (double)nlate / (double)g->n;
    s->span += (double)g->rounds[at].span_ns / 1e3;
    s->rounds++;
}

/* The logarithm of a positive number: libm would be one more library for the dynamic
 * linker in every launch. 2 atanh((x - 1) / (x + 1)), for x near 1. */
static double ln(double x)
{
    double twos = 0, sum = 0;
    for (; x > 1.5; x /= 2)
        twos++;
    for (; x < 0.75; x *= 2)
        twos--;
    double y = (x - 1) / (x + 1), power = y;
    for (int k = 1; k < 24; k += 2, power *= y * y)
        sum += power / k;
    return 2 * sum + twos * 0.69314718055994531;
}

/* Kullback-Leibler divergence of two coins, where f > p; p is positive with f. */
static double divergence(double f, double p)
{
    if (f <= p || p <= 0)
        return 0;
    return f * ln(f / p) + (f < 1 ? (1 - f) * ln((1 - f) / (1 - p)) : 0);
}

enum judgement { INNOCENT, SUSPECT, STRAGGLER };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_lag(const struct sum *of, size_t n)
{
    OWNED double *sorted = xcalloc(n, sizeof *sorted);
    for (size_t i = 0; i < n; i++)
        sorted[i] = of[i].lag;
    qsort(sorted, n, sizeof *sorted, by_size);
    return sorted[(n - 1) / 2];
}

/* `usual`: the lags of the median rank of `n`. */
static enum judgement judge(const struct sums *s, size_t i, size_t n, double usual,
                            double share)
{
    double needed = EVIDENCE + ln((double)n);
    if (s->w <= 0 || s->span <= 0 || s->of[i].lag - usual < share * s->span ||
        s->of[i].lag < MULTIPLE * usual)
        return INNOCENT;
    double m = s->w * s->w / s->w2, f = s->of[i].weight / s->w, p = s->late / s->w;
    double evidence = m * divergence(f, p);
    return m >= ROUNDS_MIN && evidence >= needed ? STRAGGLER
           : evidence >= needed / 3              ? SUSPECT
                                                 : INNOCENT;
}

static void check_window(struct lateness *l, const struct group *g, const struct sums *s,
                         int64_t lasts_ns, struct straggler *of)
{
    double usual = median_lag(s->of, g->n);
    for (size_t i = 0; i < g->n; i++) {
        enum judgement now = judge(s, i, g->n, usual, l->share);
        l->suspects |= now != INNOCENT;
        if (now != STRAGGLER || of[i].rounds > 0 || lasts_ns < PERSISTS_NS)
            continue;
        of[i] = (struct straggler){.rank = g->members[i]->rank,
                                   .late = s->of[i].times,
                                   .rounds = s->rounds,
                                   .lag_ns = (int64_t)(s->of[i].lag / s->rounds * 1e3),
                                   .period_ns = (int64_t)(s->span / s->rounds * 1e3),
                                   .share = s->of[i].lag / s->span};
    }
}

static void set_lags(struct lateness *l, const struct group *g, const struct sums *s)
{
    for (size_t i = 0; i < g->n; i++)
        l->ranks[g->members[i]->rank].lag_ns = (int64_t)(s->of[i].lag / s->rounds * 1e3);
}

/* From the newest round back; the windows grow by an eighth. Sets the stragglers in `of`,
 * by member; the others keep 0 rounds. */
static void examine_group(struct lateness *l, struct group *g, struct straggler *of)
{
    struct sums s = {.of = xcalloc(g->n, sizeof *s.of)};
    uint64_t nrounds = keep_round(g), n = nrounds < ROUNDS ? nrounds : ROUNDS;
    uint64_t window = SUSPECT_MIN;
    int64_t newest_ns = n ? g->rounds[(nrounds - 1) % ROUNDS].end_ns : 0;
    for (uint64_t k = 1; k <= n; k++) {
        size_t at = (nrounds - k) % ROUNDS;
        add_round(g, at, &s);
        if (k == LAG_ROUNDS || (k == n && k < LAG_ROUNDS))
            set_lags(l, g, &s);
        if (k != window)
            continue;
        window += window < 24 ? 1 : window / 8;
        check_window(l, g, &s, newest_ns - g->rounds[at].end_ns + g->rounds[at].span_ns,
                     of);
    }
    free(s.of);
}

size_t lateness_examine(struct lateness *l, struct straggler **found, size_t *nfound)
{
    size_t taken = 0;
    *found = NULL;
    *nfound = 0;
    l->suspects = false;
    for (struct group *g = l->groups; g; g = g->next_group) {
        size_t now = g->n > 1 ? take_new(l, g) : 0;
        taken += now;
        if (now == 0)
            continue;
        OWNED struct straggler *of = xcalloc(g->n, sizeof *of);
        examine_group(l, g, of);
        for (size_t i = 0; i < g->n; i++) {
            if (of[i].rounds == 0)
                continue;
            *found = xrealloc(*found, *nfound + 1, sizeof **found);
            (*found)[(*nfound)++] = of[i];
        }
    }
    return taken;
}

bool lateness_suspects(const struct lateness *l)
{
    return l->suspects;
}

/* No, if the rank waits little and the host is not busy; or if over two rounds its waits
 * are a small part of how late it is. */
bool lateness_contended(const struct straggler *is, const struct cpu_share *cpus)
{
    if (!cpus->busy && cpus->waits_percent < CONTENDED_PERCENT)
        return false;
    return cpus->waits_percent * EXPLAINED > is->share * 100 ||
           cpus->measured_s < 2 * (double)is->period_ns / 1e9;
}

uint64_t lateness_entered(const struct lateness *l, int rank)
{
    return l->ranks[rank].entered;
}

int64_t lateness_lag_ns(const struct lateness *l, int rank)
{
    return l->ranks[rank].lag_ns;
}
