/* worker/report/history.h - what a run has shown so far: the points of its curves
 *
 * Owner: the trainer on rank 0. Others fill nothing in and pay nothing.
 */
#ifndef WORKER_REPORT_HISTORY_H
#define WORKER_REPORT_HISTORY_H

#include <stddef.h>

struct step_point {
    double at; /* epochs done, fractions included */
    double loss;
};

enum { HISTORY_STEPS = 8192 }; /* fewer are kept: a long run needs no more memory */

struct epoch_point {
    double at;
    double train_loss, test_loss;
    double train_accuracy, test_accuracy; /* percent; NaN: there is no such thing */
};

struct history {
    struct step_point *steps; /* owned; each the mean of `each` steps that followed on */
    size_t nsteps, steps_room;
    size_t each;                /* a power of two; 0 is 1 */
    struct step_point open;     /* sums of those that are not enough for a point yet, */
    size_t nopen;               /* and how many */
    struct epoch_point *epochs; /* owned */
    size_t nepochs, epochs_room;
};

void history_step(struct history *h, struct step_point p);
void history_epoch(struct history *h, struct epoch_point p);
void history_finish(struct history *h); /* frees; a zeroed struct is empty */

#endif
