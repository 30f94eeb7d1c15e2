/* common/arrivals.c - see arrivals.h */
#include "common/arrivals.h"

#include "common/rank_map.h"

#include <stdatomic.h>
#include <stdlib.h>

struct arrivals_file *arrivals_map(void)
{
    struct arrivals_file *f =
        getenv("DDPRUN_ARRIVALS") ? rank_map("arrivals", sizeof *f) : NULL;
    if (f) {
        f->room = ARRIVALS;
        f->version = ARRIVALS_VERSION;
    }
    return f;
}

void arrivals_add(struct arrivals_file *f, uint64_t group, uint64_t number, int64_t at_ns)
{
    uint64_t at = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed);
    struct arrival_entry *e = &f->entry[at % ARRIVALS];
    atomic_store_explicit(&e->number, 0, memory_order_release);
    atomic_thread_fence(memory_order_release);
    e->group = group;
    e->at_ns = at_ns;
    atomic_store_explicit(&e->number, number, memory_order_release);
}
