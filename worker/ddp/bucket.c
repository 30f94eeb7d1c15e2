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
#include <string.h>

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

enum { PIECES_MOST = 512 }; /* n pieces take O(n^2) time */

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
    size_t n = join_small(all, all_ready, nall, pieces, ready), nbuckets = 0;
    /* of the first i pieces: how soon they can be reduced, and how long that takes */
    OWNED double *soonest = xcalloc(n + 1, sizeof *soonest);
    OWNED double *takes = xcalloc(n + 1, sizeof *takes);
    for (size_t i = 1; i <= n; i++) {
        takes[i] = takes[i - 1] + (double)pieces[i - 1].count * per_float;
        soonest[i] = INFINITY;
        for (size_t j = 0; j < i; j++) /* the last bucket is pieces[j..i) */
            soonest[i] = fmin(soonest[i], fmax(soonest[j], ready[i - 1]) + latency +
                                              takes[i] - takes[j]);
    }
    /* from the last one on, each bucket has as many pieces as leave the others time */
    double end = soonest[n] * 1.01;
    for (size_t i = n, j; i > 0; i = j) {
        for (j = 0; j + 1 < i &&
                    fmax(soonest[j], ready[i - 1]) + latency + takes[i] - takes[j] > end;)
            j++;
        end -= latency + takes[i] - takes[j];
        struct bucket *b = &out[nall - ++nbuckets];
        *b = (struct bucket){pieces[i - 1].offset, 0};
        for (size_t k = j; k < i; k++)
            b->count += pieces[k].count;
    }
    memmove(out, out + nall - nbuckets, nbuckets * sizeof *out);
    return nbuckets;
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
