/* worker/report/history.h - the points of a run's curves
 *
 * Owner: the trainer on rank 0. Other ranks leave it empty.
 */
#ifndef WORKER_REPORT_HISTORY_H
#define WORKER_REPORT_HISTORY_H

#include <stddef.h>

struct step_point {
    double at; /* epochs done, fractions included */
    double loss;
};

enum { HISTORY_STEPS = 800 }; /* points of a curve at most: more are not seen */

struct epoch_point {
    double at;
    double train_loss, test_loss;
    double train_accuracy, test_accuracy; /* percent; NaN: not applicable */
};

struct history {
    struct step_point steps[HISTORY_STEPS]; /* the mean of `each` consecutive steps */
    size_t nsteps;
    size_t each;                /* a power of two; 0 means 1 */
    struct step_point open;     /* sums of the steps since the last point, */
    size_t nopen;               /* and their number */
    struct epoch_point *epochs; /* owned */
    size_t nepochs, epochs_room;
};

void history_step(struct history *h, struct step_point p);
void history_epoch(struct history *h, struct epoch_point p);
void history_finish(struct history *h); /* frees; a zeroed struct is allowed */

#endif
