/* launcher/job/address_map.h - which nodes have an address
 *
 * Filled from what agents say of their machines (HELLO); a look-up costs one hash,
 * however many nodes there are. Several nodes may have one address: a docker0 on each.
 */
#ifndef LAUNCHER_JOB_ADDRESS_MAP_H
#define LAUNCHER_JOB_ADDRESS_MAP_H

#include <stddef.h>

struct address_map {
    struct address_entry *entries; /* owned */
};

/* `addr` in numbers, without port; copied. */
void address_map_add(struct address_map *m, const char *addr, unsigned node);
/* How many nodes have it; `*nodes` is borrowed until the next address_map_add(). */
size_t address_map_find(const struct address_map *m, const char *addr,
                        const unsigned **nodes);
void address_map_finish(struct address_map *m);

#endif
