/* worker/ddp/sums.h - the numbers of a step that are summed over the ranks with its
 * gradients, on the CPU by reducer_finish()
 */
#ifndef WORKER_DDP_SUMS_H
#define WORKER_DDP_SUMS_H

struct step_sums {
    float loss;        /* each rank's mean times its share of the samples */
    float correct;     /* right answers: exact up to 2^24 */
    float bad;         /* ranks whose loss is not a number */
    float stop;        /* ranks that were told to stop, */
    float interrupted; /* those of them that were told by SIGINT */
    float warned;      /* and by SIGUSR1 */
    float skipped;     /* 1: gradients were not finite, and no step was taken */
};

#endif
