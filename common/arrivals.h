/* common/arrivals.h - when a rank has entered its last collectives: a file that it maps
 *
 * With --stragglers a rank of libddpgroup or of MPI writes to the file whose name begins
 * with DDPRUN_DIAGNOSE (doc/hangs.md); ddprun-diagnose reads it while the rank runs.
 * `next` is incremented for each entry, which is then at index (next - 1) % ARRIVALS. An
 * entry that is being written has the number 0.
 */
#ifndef COMMON_ARRIVALS_H
#define COMMON_ARRIVALS_H

#include <stdint.h>

enum { ARRIVALS = 512, ARRIVALS_VERSION = 1 };

struct arrival_entry {
    _Atomic uint64_t number; /* of the collective in its group, from 1 */
    uint64_t group;          /* fnv1a() of its name, the same in all of its ranks */
    int64_t at_ns;           /* CLOCK_MONOTONIC */
};

struct arrivals_file {
    uint32_t version, room; /* ARRIVALS_VERSION, ARRIVALS */
    _Atomic uint64_t next;
    struct arrival_entry entry[ARRIVALS];
};

/* Maps it; NULL: DDPRUN_ARRIVALS is not set, or it cannot be made. */
struct arrivals_file *arrivals_map(void);
/* Any thread. */
void arrivals_add(struct arrivals_file *f, uint64_t group, uint64_t number,
                  int64_t at_ns);

#endif
