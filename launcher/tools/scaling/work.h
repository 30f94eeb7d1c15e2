/* launcher/tools/scaling/work.h - the sizes to measure, and the command for each size
 *
 * Strong scaling: the total work stays the same, and should take less time. Weak scaling:
 * the work per rank stays the same, and should take no longer. Numbers in the command
 * that set the amount of work can be marked:
 *
 *     {per-rank:64}  per rank, 64 for one rank: strong 64/n, weak 64
 *     {total:1000}   in total, 1000 for one rank: strong 1000, weak 1000 n
 *
 * So one command serves both series, which start with the same run of one rank.
 */
#ifndef LAUNCHER_TOOLS_SCALING_WORK_H
#define LAUNCHER_TOOLS_SCALING_WORK_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

enum series { SERIES_STRONG, SERIES_WEAK, SERIES_COUNT };
extern const char *const series_names[SERIES_COUNT];

enum { SIZES_MAX = 64 };

struct work {
    bool series[SERIES_COUNT]; /* the series to measure */
    int sizes[SIZES_MAX];      /* ranks, ascending */
    int nsizes;
};

/* "1,2,4,8", "strong:1,2" or "weak:1,2". Without a prefix: both series if
 * `argv` has marks, else strong. `argv` may be NULL: only the text is checked. */
int work_read(const char *text, char *const *argv, struct work *w, struct ddp_err *err);

/* The command for `ranks` ranks, its marks replaced; appended to `out`. */
int work_command(char *const *argv, enum series series, int ranks, struct strv *out,
                 struct ddp_err *err);

#endif
