/* worker/turns.c - see turns.h */
#include "worker/turns.h"

struct turn turn_of(int stage, int stages, int n, int k)
{
    int ahead = stages - stage < n ? stages - stage : n;
    if (k < ahead)
        return (struct turn){false, k};
    int pairs = n - ahead, then = k - ahead; /* back, forward, back, forward */
    if (then >= 2 * pairs)
        return (struct turn){true, then - pairs};
    return then % 2 == 0 ? (struct turn){true, then / 2}
                         : (struct turn){false, ahead + then / 2};
}

int turn_parts(int n, int wanted)
{
    return n < wanted ? n : wanted;
}

int turn_first(int n, int parts, int m)
{
    return (int)((long)n * m / parts);
}
