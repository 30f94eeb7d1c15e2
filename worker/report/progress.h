/* worker/report/progress.h - progress for a user who watches
 *
 * On a terminal a bar that is redrawn, and stays when an epoch is done; elsewhere (a
 * file, a pipe) whole lines, and in a long epoch one line now and then. Only rank 0
 * shows it.
 */
#ifndef WORKER_REPORT_PROGRESS_H
#define WORKER_REPORT_PROGRESS_H

#include "include/ddprun/err.h"
#include "worker/report/metrics.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum progress_mode { PROGRESS_AUTO, PROGRESS_BAR, PROGRESS_LINES, PROGRESS_NONE };

struct progress {
    FILE *out; /* borrowed; NULL: silent */
    bool bar, steps, drawn;
    bool blocks;        /* the terminal shows UTF-8 */
    int columns, cells; /* of the terminal, of the bar in it */
    int lost;           /* errno of the first failed write; 0: none */
    bool gap;           /* the last line was empty */
    int epochs;         /* of the whole run */
    const char *unit;   /* of speeds: "images" */
    double each;        /* units per sample */
    int64_t last_ms;    /* time of the last output */
};

/* PROGRESS_AUTO: a bar if `out` is a terminal, or if $DDPRUN_COLUMNS says that the
 * output of this pipe ends on one. */
void progress_init(struct progress *p, FILE *out, enum progress_mode mode, int epochs);

/* Prints a line, above the bar. */
void progress_say(struct progress *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Erases the bar, before a line to stderr. */
void progress_erase(struct progress *p);

/* What was printed beside it. False: it does not arrive. */
bool progress_flush(struct progress *p);

/* Prints an empty line, unless the last one was. */
void progress_gap(struct progress *p);

/* `done` of the epoch's `all` samples; draws at most ten times a second. */
void progress_step(struct progress *p, const struct report *r, size_t done, size_t all);
void progress_epoch(struct progress *p, const struct report *r);
/* A test between steps. */
void progress_test(struct progress *p, const struct report *r);
/* Was all output written? A reader that has left, or a closed stdout, is no error. */
int progress_check(const struct progress *p, struct ddp_err *err);

#endif
