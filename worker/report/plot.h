/* worker/report/plot.h - the curves of a run, and their SVG image
 *
 * Owner: the trainer on rank 0. Other ranks leave the history empty.
 */
#ifndef WORKER_REPORT_PLOT_H
#define WORKER_REPORT_PLOT_H

#include "include/ddprun/err.h"
#include "worker/report/metrics.h"

#include <stddef.h>

enum { HISTORY_STEPS = 800 }; /* points of a curve at most: more are not seen */

struct history {
    /* Each point is the mean of `each` consecutive steps: epochs done, and the loss. */
    double at[HISTORY_STEPS], loss[HISTORY_STEPS];
    size_t nsteps;
    size_t each;               /* a power of two; 0 means 1 */
    double open_at, open_loss; /* sums of the steps since the last point, */
    size_t nopen;              /* and their number */
    struct report *epochs;     /* owned */
    size_t nepochs;
};

void history_step(struct history *h, double at, double loss);
void history_epoch(struct history *h, const struct report *r);
void history_finish(struct history *h); /* frees; a zeroed struct is allowed */

/* Writes the curves to `path`: the loss of the steps and of the test set above,
 * accuracy below if there is one. `title` is any text. */
int plot_write(const char *path, const char *title, const struct history *h,
               struct ddp_err *err);

#endif
