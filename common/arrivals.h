/* common/arrivals.h - when a rank has entered its last collectives: a file that it maps
 *
 * With --stragglers a rank of libddpgroup or of MPI writes to the file whose name begins
 * with DDPRUN_DIAGNOSE (doc/hangs.md); ddprun-diagnose reads it while the rank runs.
 * `next` is incremented for each entry, which is then at index (next - 1) % ARRIVALS. An
 * entry that is being written has the number 0.
 */
#ifndef COMMON_ARRIVALS_H
#define COMMON_ARRIVALS_H

#include <stdatomic.h>
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

/* Any thread; `f` has been zeroed, with its version and room. */
static inline void arrivals_add(struct arrivals_file *f, uint64_t group, uint64_t number,
                                int64_t at_ns)
{
    uint64_t at = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed);
    struct arrival_entry *e = &f->entry[at % ARRIVALS];
    atomic_store_explicit(&e->number, 0, memory_order_release);
    atomic_thread_fence(memory_order_release);
    e->group = group;
    e->at_ns = at_ns;
    atomic_store_explicit(&e->number, number, memory_order_release);
}

#endif
