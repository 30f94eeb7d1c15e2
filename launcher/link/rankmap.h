/* launcher/link/rankmap.h - the map of an MPI job: the node of each rank
 *
 * One text for each node that has ranks, by node rank: "0-3,8 HOST". Ranges, since the
 * ranks of a host are mostly consecutive.
 */
#ifndef LAUNCHER_LINK_RANKMAP_H
#define LAUNCHER_LINK_RANKMAP_H

#include "common/idset.h"
#include "common/strv.h"

#include <stdint.h>

struct rankmap {
    uint32_t nnodes, nranks;
    struct rankmap_node {
        const char *host;   /* borrowed from the text */
        struct idset ranks; /* in rank order */
        uint32_t nranks;
    } * nodes;         /* owned */
    uint32_t *node_of; /* owned: by rank */
};

/* `map` is borrowed while the result is used. Each of the `nranks` ranks occurs once. */
int rankmap_read(struct rankmap *m, const struct strv *map, uint32_t nranks,
                 struct ddp_err *err);
void rankmap_finish(struct rankmap *m);

/* The lines as one text of `size` bytes, compressed to *n: malloc'ed. And back. */
void *rankmap_pack(const struct strv *map, size_t *n, uint32_t *size);
int rankmap_unpack(const void *data, size_t n, uint32_t size, struct strv *map,
                   struct ddp_err *err);

/* The text for one node. */
void rankmap_push(struct strv *map, const char *host, const int *ranks, int n);

#endif
