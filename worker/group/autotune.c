/* worker/group/autotune.c - see autotune.h */
#include "worker/group/autotune.h"

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
