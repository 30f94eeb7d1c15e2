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

struct epoch_point {
    double at;
    double train_loss, test_loss;
    double train_accuracy, test_accuracy; /* percent; NaN: there is no such thing */
};

struct history {
    struct step_point *steps; /* owned */
    size_t nsteps, steps_room;
    struct epoch_point *epochs; /* owned */
    size_t nepochs, epochs_room;
};

void history_step(struct history *h, struct step_point p);
void history_epoch(struct history *h, struct epoch_point p);
void history_finish(struct history *h); /* frees; a zeroed struct is empty */

#endif
