/* launcher/scaling/work.h - what is measured at which size, and the command that does it
 *
 * Strong scaling: the work of all ranks together stays the same, and should take less
 * time. Weak scaling: the work of each rank stays the same, and should take no longer.
 * Numbers of the command that say how much work there is can be marked:
 *
 *     {per-rank:64}  of each rank, for one rank 64: strong 64/n, weak 64
 *     {total:1000}   of all ranks, for one rank 1000: strong 1000, weak 1000 n
 *
 * So one command stands for both series, which begin with the same run of one rank.
 */
#ifndef LAUNCHER_SCALING_WORK_H
#define LAUNCHER_SCALING_WORK_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

enum series { SERIES_STRONG, SERIES_WEAK, SERIES_COUNT };
extern const char *const series_names[SERIES_COUNT];

enum { SIZES_MAX = 64 };

struct work {
    bool series[SERIES_COUNT]; /* which are measured */
    int sizes[SIZES_MAX];      /* ranks, growing */
    int nsizes;
};

/* "1,2,4,8", "strong:1,2" or "weak:1,2". Without a word in front: both series where
 * `argv` has marks, else strong. `argv` may be NULL: the text alone is checked. */
int work_read(const char *text, char *const *argv, struct work *w, struct ddp_err *err);

/* The command for `ranks` ranks, its marks replaced; appended to `out`. */
int work_command(char *const *argv, enum series series, int ranks, struct strv *out,
                 struct ddp_err *err);

#endif
