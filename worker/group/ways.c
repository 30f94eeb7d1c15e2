/* worker/group/ways.c - see ways.h */
#include "worker/group/ways.h"

#include "common/duration.h"

enum {
    TELLING = 4096, /* bytes that take long enough to be timed */
    TRIAL = 32,     /* one turn in so many goes the other way */
    WEIGHT = 4,     /* of what is known against a new measurement */
    OUTLIER = 4     /* times what is known: interrupted, which says nothing */
};

int ways_begin(struct ways *w, size_t bytes)
{
    w->way = w->cost[1] > 0 && w->cost[1] < w->cost[0];
    w->began = 0;
    if (bytes < TELLING)
        return w->way;
    w->way ^= w->turns++ % TRIAL == 1;
    w->began = now_ns();
    return w->way;
}

void ways_end(struct ways *w, size_t bytes)
{
    if (w->began == 0)
        return;
    double cost = (double)(now_ns() - w->began) / (double)bytes,
           *known = &w->cost[w->way];
    if (*known > 0 && cost > OUTLIER * *known)
        cost = OUTLIER * *known;
    *known = *known > 0 ? *known + (cost - *known) / WEIGHT : cost;
}
