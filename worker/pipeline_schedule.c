/* worker/pipeline_schedule.c - see pipeline_schedule.h */
#include "worker/pipeline_schedule.h"

struct pipeline_step pipeline_step_at(int stage, int stages, int n, int k)
{
    int ahead = stages - stage < n ? stages - stage : n;
    if (k < ahead)
        return (struct pipeline_step){false, k};
    int pairs = n - ahead, then = k - ahead; /* back, forward, back, forward */
    if (then >= 2 * pairs)
        return (struct pipeline_step){true, then - pairs};
    return then % 2 == 0 ? (struct pipeline_step){true, then / 2}
                         : (struct pipeline_step){false, ahead + then / 2};
}

int pipeline_micro_batches(int n, int wanted)
{
    return n < wanted ? n : wanted;
}

int pipeline_first_sample(int n, int parts, int m)
{
    return (int)((long)n * m / parts);
}
