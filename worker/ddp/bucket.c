/* worker/ddp/bucket.c - see bucket.h */
#include "worker/ddp/bucket.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Is params[i] part of a convolution? A bias has the kind of the weight before it. */
static bool of_convolution(const struct param *params, size_t i)
{
    while (i > 0 && params[i].ndim == 1)
        i--;
    return params[i].ndim == 4;
}

size_t bucket_plan(const struct param *params, size_t n, size_t first, size_t cap,
                   struct bucket *out)
{
    size_t nbuckets = 0, gathered = 0;
    for (size_t i = n; i-- > 0;) {
        gathered += params[i].count;
        /* A layer's gradients become final together, the weight's with the bias's: only a
         * weight, which comes first in the block, ends a bucket. */
        bool whole = params[i].ndim > 1;
        bool full = gathered >= (nbuckets == 0 && first < cap ? first : cap);
        bool turn = i > 0 && !of_convolution(params, i) && of_convolution(params, i - 1);
        if (i == 0 || (cap < SIZE_MAX && whole && (full || turn))) {
            out[nbuckets++] = (struct bucket){params[i].offset, gathered};
            gathered = 0;
        }
    }
    return nbuckets;
}

size_t bucket_final(const struct bucket *plan, size_t n, size_t started, size_t offset)
{
    while (started < n && plan[started].offset >= offset)
        started++;
    return started;
}

struct bucket bucket_part(struct bucket b, size_t unit, int rank, int size)
{
    size_t units = b.count / unit, n = (size_t)size, r = (size_t)rank;
    size_t from = units * r / n * unit;
    size_t to = rank == size - 1 ? b.count : units * (r + 1) / n * unit;
    return (struct bucket){b.offset + from, to - from};
}

/* ---- by time ---- */

/* The best end of pieces[0..i) in k buckets, and where the last of these begins. */
struct best {
    double end;
    size_t from;
};

/* best[k * (n + 1) + i]: the sooner the earlier buckets end, the sooner the last one
 * can, so each entry of the table needs only the best of those before it. */
static void fill(struct best *best, const struct bucket *pieces, const double *ready,
                 size_t n, double latency, double per_float)
{
    for (size_t k = 0; k <= n; k++)
        for (size_t i = 0; i <= n; i++)
            best[k * (n + 1) + i] = (struct best){k == 0 && i == 0 ? 0 : INFINITY, 0};
    for (size_t k = 1; k <= n; k++)
        for (size_t i = k; i <= n; i++) {
            struct best *b = &best[k * (n + 1) + i];
            double floats = 0;
            for (size_t j = i; j-- > k - 1;) { /* the last bucket is pieces[j..i) */
                floats += (double)pieces[j].count;
                double free_at = best[(k - 1) * (n + 1) + j].end;
                double start = free_at > ready[i - 1] ? free_at : ready[i - 1];
                double end = start + latency + floats * per_float;
                if (end < b->end)
                    *b = (struct best){end, j};
            }
        }
}

enum { PIECES_MOST = 512 }; /* n pieces: a table of n^2 entries, in O(n^3) time */

/* Joins neighbours, so that at most PIECES_MOST pieces are left. */
static size_t join_small(const struct bucket *pieces, const double *ready, size_t n,
                         struct bucket *joined, double *when)
{
    size_t all = 0, least = 0, m = 0;
    for (size_t i = 0; i < n; i++)
        all += pieces[i].count;
    if (n > PIECES_MOST)
        least = all / PIECES_MOST + 1;
    for (size_t i = 0, count = 0; i < n; i++) {
        count += pieces[i].count;
        joined[m] = (struct bucket){pieces[i].offset, count};
        when[m] = ready[i];
        if (count >= least || i == n - 1) {
            m++;
            count = 0;
        }
    }
    return m;
}

size_t bucket_plan_timed(const struct bucket *all, const double *all_ready, size_t nall,
                         double latency, double per_float, struct bucket *out)
{
    OWNED struct bucket *pieces = xcalloc(nall, sizeof *pieces);
    OWNED double *ready = xcalloc(nall, sizeof *ready);
    size_t n = join_small(all, all_ready, nall, pieces, ready);
    OWNED struct best *best = xcalloc((n + 1) * (n + 1), sizeof *best);
    fill(best, pieces, ready, n, latency, per_float);
    size_t fewest = 1;
    double soonest = INFINITY;
    for (size_t k = 1; k <= n; k++)
        soonest = fmin(soonest, best[k * (n + 1) + n].end);
    while (best[fewest * (n + 1) + n].end > soonest * 1.01)
        fewest++;
    for (size_t k = fewest, i = n; k > 0; k--) {
        size_t from = best[k * (n + 1) + i].from;
        out[k - 1] = (struct bucket){pieces[i - 1].offset, 0};
        for (size_t j = from; j < i; j++)
            out[k - 1].count += pieces[j].count;
        i = from;
    }
    return fewest;
}

int bucket_plan_agreed(struct ddp_group *group, const struct bucket *pieces,
                       double *times, size_t n, struct bucket *out, size_t *nout,
                       struct ddp_err *err)
{
    double floats = 0;
    TRY(ddp_all_reduce(group, times, n + 2, DDP_F64, DDP_AVG, err));
    for (size_t i = 0; i < n; i++) {
        floats += (double)pieces[i].count;
        if (i > 0 && times[i] < times[i - 1]) /* means of different steps */
            times[i] = times[i - 1];
    }
    double latency = times[n], all = times[n + 1];
    double per_float = (all > latency ? all - latency : all) / floats;
    *nout = bucket_plan_timed(pieces, times, n, latency, per_float, out);
    return 0;
}

/* ---- as text ---- */

void bucket_plan_write(const struct bucket *plan, size_t n, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (size_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%zu", i ? "," : "",
                                 plan[i].offset);
}

size_t bucket_plan_read(const char *text, size_t count, size_t most, struct bucket *out)
{
    size_t end = count, n = 0;
    for (char *next; *text; text = *next ? next + 1 : next) {
        size_t offset = strtoull(text, &next, 10);
        if (next == text || (*next != ',' && *next) || offset >= end || n == most)
            return 0;
        out[n++] = (struct bucket){offset, end - offset};
        end = offset;
    }
    return end == 0 ? n : 0;
}
