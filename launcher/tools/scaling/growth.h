/* launcher/tools/scaling/growth.h - the scaling table: speed-up and efficiency by number
 * of ranks
 *
 * Speed-up: work per second relative to the smallest size of the series, times the ranks
 * of that size (so it is 1 for one rank). Efficiency: speed-up divided by ranks.
 *
 * The table is kept in a folder as scaling.csv, with scaling.txt and scaling.svg, and is
 * rewritten after each run, so that jobs of one size each share a table.
 */
#ifndef LAUNCHER_TOOLS_SCALING_GROWTH_H
#define LAUNCHER_TOOLS_SCALING_GROWTH_H

#include "launcher/tools/scaling/rate.h"
#include "launcher/tools/scaling/work.h"

#include <stdio.h>

struct row {
    enum series series;
    int ranks;
    double seconds;             /* wall time of the run */
    struct rate rate;           /* printed by the program */
    double speedup, efficiency; /* computed by growth_add() */
};

struct growth {
    struct row *rows; /* owned; by series, then ranks */
    size_t n;
};

/* Add the run or replace an earlier one of its size, and recompute speed-up and
 * efficiency.
 */
void growth_add(struct growth *t, const struct row *row);
void growth_finish(struct growth *t);

/* Read the table of `folder`, if there is one. */
int growth_load(struct growth *t, const char *folder, struct ddp_err *err);

/* Writes all three files; `title` is the command. */
int growth_save(const struct growth *t, const char *folder, const char *title,
                struct ddp_err *err);

/* Print the table as text, one call per line. */
void growth_print(const struct growth *t, FILE *out);

#endif
