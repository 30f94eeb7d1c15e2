/* worker/group/autotune.c - choose between two implementations by measurement
 *
 * For choices that depend on how the CPUs of the ranks share caches: the topology does
 * not show it, it differs between pairs of ranks, and changes when virtual CPUs are
 * moved. So both are timed: one call in a while uses the other implementation, and the
 * faster one is kept.
 */
#include "worker/group/shm.h"

#include "common/duration.h"

enum {
    TELLING = 4096, /* bytes from which on a call is timed */
    TRIAL = 32,     /* one call in so many uses the other implementation */
    WEIGHT = 4,     /* of the average against a new measurement */
    OUTLIER = 4     /* times the average: was interrupted */
};

int autotune_begin(struct autotune *w, size_t bytes)
{
    w->way = w->cost[1] > 0 && w->cost[1] < w->cost[0];
    w->began = 0;
    if (bytes < TELLING)
        return w->way;
    w->way ^= w->turns++ % TRIAL == 1;
    w->began = now_ns();
    return w->way;
}

void autotune_end(struct autotune *w, size_t bytes)
{
    if (w->began == 0)
        return;
    double cost = (double)(now_ns() - w->began) / (double)bytes,
           *known = &w->cost[w->way];
    if (*known > 0 && cost > OUTLIER * *known)
        cost = OUTLIER * *known;
    *known = *known > 0 ? *known + (cost - *known) / WEIGHT : cost;
}
