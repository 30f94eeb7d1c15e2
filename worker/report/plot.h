/* worker/report/plot.h - the curves of a run as one SVG picture
 */
#ifndef WORKER_REPORT_PLOT_H
#define WORKER_REPORT_PLOT_H

#include "include/ddprun/err.h"
#include "worker/report/history.h"

/* Writes the picture to `path`: the loss of the steps and of the test set above, accuracy
 * below where there is one. `title` is any text. */
int plot_write(const char *path, const char *title, const struct history *h,
               struct ddp_err *err);

/* Numbers for an axis from lo to hi: at most `room`, evenly 1, 2 or 5 times a power of
 * ten apart. Returns how many. */
int plot_ticks(double lo, double hi, double *ticks, int room);

#endif
