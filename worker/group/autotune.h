/* worker/group/autotune.h - choose between two implementations by measurement
 *
 * For choices that depend on how the CPUs of the ranks share caches: the topology does
 * not show it, it differs between pairs of ranks, and changes when virtual CPUs are
 * moved. So both are timed: one call in a while uses the other implementation, and the
 * faster one is kept.
 */
#ifndef WORKER_GROUP_AUTOTUNE_H
#define WORKER_GROUP_AUTOTUNE_H

#include <stddef.h>
#include <stdint.h>

struct autotune {
    unsigned turns;
    int way;        /* of this call */
    int64_t began;  /* ns; 0: this call is too short to be timed */
    double cost[2]; /* ns a byte; 0: not yet known */
};

/* Which implementation, 0 or 1, to use for so many bytes; autotune_end() when done: */
int autotune_begin(struct autotune *w, size_t bytes);
void autotune_end(struct autotune *w, size_t bytes);

#endif
