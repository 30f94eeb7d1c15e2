/* launcher/plugins/store/address_map.c - see address_map.h */
#include "launcher/plugins/store/address_map.h"

#include "common/mem.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <uthash.h>

struct address_entry {
    char addr[INET6_ADDRSTRLEN];
    unsigned *nodes; /* owned */
    size_t n;
    UT_hash_handle hh;
};

void address_map_add(struct address_map *m, const char *addr, unsigned node)
{
    struct address_entry *e;
    HASH_FIND_STR(m->entries, addr, e);
    if (!e) {
        e = xcalloc(1, sizeof *e);
        snprintf(e->addr, sizeof e->addr, "%s", addr);
        HASH_ADD_STR(m->entries, addr, e);
    }
    if (e->n > 0 && e->nodes[e->n - 1] == node)
        return; /* two interfaces of one node */
    e->nodes = xrealloc(e->nodes, e->n + 1, sizeof *e->nodes);
    e->nodes[e->n++] = node;
}

size_t address_map_find(const struct address_map *m, const char *addr,
                        const unsigned **nodes)
{
    struct address_entry *e;
    HASH_FIND_STR(m->entries, addr, e);
    *nodes = e ? e->nodes : NULL;
    return e ? e->n : 0;
}

void address_map_finish(struct address_map *m)
{
    struct address_entry *e, *next;
    HASH_ITER (hh, m->entries, e, next) {
        HASH_DEL(m->entries, e);
        free(e->nodes);
        free(e);
    }
}
