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

/* The last bucket of the first i pieces begins either with piece j, the last one before
 * which all can be reduced by the time that piece i - 1 is ready, or with the next: an
 * earlier one transfers more after that time, a later one waits longer for the others. */
size_t bucket_plan_timed(const struct bucket *pieces, const double *ready, size_t n,
                         double latency, double per_float, struct bucket *out)
{
    /* of the first i pieces: how soon they can be reduced, and how long that takes */
    OWNED double *soonest = xcalloc(n + 1, sizeof *soonest);
    OWNED double *takes = xcalloc(n + 1, sizeof *takes);
    for (size_t i = 1, j = 0; i <= n; i++) {
        takes[i] = takes[i - 1] + (double)pieces[i - 1].count * per_float;
        while (j + 1 < i && soonest[j + 1] <= ready[i - 1])
            j++;
        soonest[i] = ready[i - 1] + latency + takes[i] - takes[j];
        if (j + 1 < i)
            soonest[i] =
                fmin(soonest[i], soonest[j + 1] + latency + takes[i] - takes[j + 1]);
    }
    /* from the last one on, each bucket has as many pieces as leave the others time */
    double end = soonest[n] * 1.01;
    size_t nbuckets = 0;
    for (size_t i = n, j; i > 0; i = j) {
        size_t offset = pieces[i - 1].offset;
        bool fits = false, fitted = false;
        j = i - 1;
        for (size_t k = i; k-- > 0 && (fits || !fitted);) {
            fits = fmax(soonest[k], ready[i - 1]) + latency + takes[i] - takes[k] <= end;
            fitted |= fits;
            j = fits ? k : j;
        }
        end -= latency + takes[i] - takes[j];
        out[n - ++nbuckets] =
            (struct bucket){offset, pieces[j].offset + pieces[j].count - offset};
    }
    memmove(out, out + n - nbuckets, nbuckets * sizeof *out);
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
