/* worker/ddp/sums.h - numbers of a step that are summed over the ranks together with
 * its gradients; on the CPU by reducer_finish()
 */
#ifndef WORKER_DDP_SUMS_H
#define WORKER_DDP_SUMS_H

struct step_sums {
    float loss;        /* each rank's mean times its share of the samples */
    float correct;     /* correct answers: exact up to 2^24 */
    float bad;         /* ranks whose loss is not finite */
    float stop;        /* ranks with a request to stop, */
    float interrupted; /* of these: by SIGINT */
    float warned;      /* and by SIGUSR1 */
    float skipped;     /* 1: gradients were not finite, and the step was skipped */
    float lr;          /* of ddp.h: rank 0's, which all use */
};

#endif
