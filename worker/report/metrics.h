/* worker/report/metrics.h - the machine-readable record of a run: one JSON object a line
 *
 *   {"kind":"run", ...}    once: model, data, ranks, batch_size, ...
 *   {"kind":"step", ...}   every step: step, epoch, loss, lr, images_per_s, seconds
 *   {"kind":"epoch", ...}  every epoch: the same and train_accuracy, test_loss,
 *                          test_accuracy (percent), peak_percent
 *   {"kind":"test", ...}   every test between steps: step, epoch, test_loss,
 *                          test_accuracy, seconds
 *   {"kind":"end", ...}    once: why the run ended, and its totals
 *
 * loss is the mean over the samples of all ranks. Numbers that are not finite are null.
 * Each line is written at once, so a run that is killed leaves whole lines.
 */
#ifndef WORKER_REPORT_METRICS_H
#define WORKER_REPORT_METRICS_H

#include "include/ddprun/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct metrics {
    FILE *out;        /* owned; NULL: nothing is written */
    const char *path; /* borrowed */
    int failed;       /* errno of the first line that could not be written */
    bool told;
};

/* Of a step, or of an epoch. */
struct report {
    uint64_t step;
    int epoch;
    double loss, lr;
    double images_per_s; /* over all ranks */
    double seconds;      /* since the run began */
    /* of an epoch */
    double test_loss;
    double train_accuracy, test_accuracy; /* percent; NaN: not applicable */
    double peak_percent;                  /* of the devices' peak; NaN: unknown */
};

/* `append`: continue the file of an earlier run. NULL path: write nothing. */
int metrics_open(struct metrics *m, const char *path, bool append, struct ddp_err *err);
enum metrics_kind { METRICS_STEP = 1, METRICS_EPOCH = 2, METRICS_TEST = 4 };
void metrics_report(struct metrics *m, enum metrics_kind kind, const struct report *r);
/* Writes any other line. */
struct metrics_field {
    const char *name;
    json_t *value; /* taken over; NULL, as of a text that is not UTF-8: left out */
};
void metrics_line(struct metrics *m, const char *kind, const struct metrics_field *fields,
                  size_t n);
json_t *metrics_number(double x); /* null if it is not finite */
/* Returns, once, the reason why lines are being lost; else NULL. */
const char *metrics_failure(struct metrics *m);
/* Returns -1 if a line was lost (a full disk). */
int metrics_close(struct metrics *m, struct ddp_err *err);

#endif
