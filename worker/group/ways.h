/* worker/group/ways.h - two ways to do the same thing, and which of them is quicker here
 *
 * For what depends on how the CPUs of the ranks share caches: that is not in the topology
 * alone, differs between pairs of ranks, and changes when virtual CPUs are moved about.
 * So it is measured: now and then a turn goes the other way, and the quicker one is kept.
 */
#ifndef WORKER_GROUP_WAYS_H
#define WORKER_GROUP_WAYS_H

#include <stddef.h>
#include <stdint.h>

struct ways {
    unsigned turns;
    int way;        /* of this turn */
    int64_t began;  /* ns; 0: this turn is too short to tell */
    double cost[2]; /* ns a byte; 0: not yet known */
};

/* Which way, 0 or 1, to go with so many bytes? And when it has been gone: */
int ways_begin(struct ways *w, size_t bytes);
void ways_end(struct ways *w, size_t bytes);

#endif
