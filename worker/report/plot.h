/* worker/report/plot.h - the curves of a run as an SVG image
 */
#ifndef WORKER_REPORT_PLOT_H
#define WORKER_REPORT_PLOT_H

#include "include/ddprun/err.h"
#include "worker/report/history.h"

/* Writes it to `path`: the loss of the steps and of the test set above,
 * accuracy below if there is one. `title` is any text. */
int plot_write(const char *path, const char *title, const struct history *h,
               struct ddp_err *err);

#endif
