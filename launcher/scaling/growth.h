/* launcher/scaling/growth.h - what was measured, and what follows from it
 *
 * Speed-up: how many times more work is done in a second than by one rank; where the
 * smallest size is not one rank, that size counts as itself. Efficiency: speed-up by
 * ranks. The base is the smallest size of the series.
 *
 * The table lives in a folder, as scaling.csv, and is written anew with each run, beside
 * scaling.txt for people and scaling.svg: jobs that measure a size each make one table.
 */
#ifndef LAUNCHER_SCALING_GROWTH_H
#define LAUNCHER_SCALING_GROWTH_H

#include "launcher/scaling/rate.h"
#include "launcher/scaling/work.h"

struct row {
    enum series series;
    int ranks;
    double seconds;             /* the run, from its start to its end */
    struct rate rate;           /* as the program said it */
    double speedup, efficiency; /* made by growth_add() */
};

struct growth {
    struct row *rows; /* owned; by series, then ranks */
    size_t n;
};

/* Adds the run, or replaces an earlier one of its size; numbers are made anew. */
void growth_add(struct growth *t, const struct row *row);
void growth_finish(struct growth *t);

/* Reads what `folder` has from earlier; nothing is fine. */
int growth_load(struct growth *t, const char *folder, struct ddp_err *err);

/* Writes all three files; `title` is the command. */
int growth_save(const struct growth *t, const char *folder, const char *title,
                struct ddp_err *err);

/* The table for people, a line a call. */
void growth_print(const struct growth *t, void (*line)(const char *text, void *arg),
                  void *arg);

#endif
