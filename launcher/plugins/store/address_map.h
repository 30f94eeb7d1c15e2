/* launcher/plugins/store/address_map.h - from an IP address to the nodes that have it
 *
 * Filled from the addresses in each agent's HELLO. A lookup is one hash-table access.
 * Several nodes may share an address (a docker0 on each).
 */
#ifndef LAUNCHER_PLUGINS_STORE_ADDRESS_MAP_H
#define LAUNCHER_PLUGINS_STORE_ADDRESS_MAP_H

#include <stddef.h>

struct address_map {
    struct address_entry *entries; /* owned */
};

/* `addr` is numeric, without port; copied. */
void address_map_add(struct address_map *m, const char *addr, unsigned node);
/* Returns the number of nodes with `addr`; `*nodes` is borrowed until the next
 * address_map_add(). */
size_t address_map_find(const struct address_map *m, const char *addr,
                        const unsigned **nodes);
void address_map_finish(struct address_map *m);

#endif
