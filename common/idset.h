/* common/idset.h - sets of small numbers in list notation: "0-3,8"
 *
 * Ranks, CPUs, GPUs. Spans are kept sorted, disjoint and merged, so that equal sets have
 * equal texts. A zeroed struct is the empty set.
 */
#ifndef COMMON_IDSET_H
#define COMMON_IDSET_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

#define IDSET_MAX 0x3fffffff /* the largest member */

struct idspan {
    int lo, hi; /* both in the set */
};

struct idset {
    struct idspan *spans; /* owned */
    size_t n, room;
};

/* Add `text` to `set`: numbers and lo-hi, separated by commas. Blanks around them are
 * allowed; anything else is an error that gives the column. */
int idset_parse(const char *text, struct idset *set, struct ddp_err *err);

void idset_add(struct idset *set, int lo, int hi);
bool idset_has(const struct idset *set, int id);
long idset_count(const struct idset *set);
char *idset_text(const struct idset *set); /* "" when empty; the caller frees */
void idset_finish(struct idset *set);

#endif
