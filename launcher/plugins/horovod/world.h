/* launcher/plugins/horovod/world.h - ranks and sizes in Horovod's next world
 *
 * Horovod copies the state of rank 0 to all others, so the lowest rank of the last world
 * that is left is rank 0. The others of its host follow, then the other hosts.
 */
#ifndef LAUNCHER_PLUGINS_HOROVOD_WORLD_H
#define LAUNCHER_PLUGINS_HOROVOD_WORLD_H

#include "common/strv.h"

#include <stdbool.h>

struct place {
    int rank, size, local_rank, local_size, cross_rank, cross_size;
};

struct member {
    int id;               /* the caller's */
    int node, local_rank; /* its node, and its number there */
    bool keeps;           /* it has the state: a survivor of the last world */
    struct place place;   /* in the last world, if it has been there; then in the next */
};

/* Set the places of all `n` members and sort them by rank; at least one keeps state. */
void world_form(struct member *m, int n);

char *place_text(const struct place *p); /* Horovod's form; malloc'ed */
/* The variables by which a rank that is started finds its place. */
void place_env(const struct place *p, struct strv *env);

#endif
