/* worker/report/history.h - the points of a run's curves
 *
 * Owner: the trainer on rank 0. Other ranks leave it empty.
 */
#ifndef WORKER_REPORT_HISTORY_H
#define WORKER_REPORT_HISTORY_H

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

#endif
