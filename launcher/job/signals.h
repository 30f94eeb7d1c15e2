/* launcher/job/signals.h - the signals that ddprun gets, as calls
 *
 * Those that mean the end (INT, TERM, HUP, QUIT), those that are passed on (USR1, USR2,
 * WINCH and a few more), and the pair TSTP and CONT, which stops and continues the ranks
 * and then ddprun itself.
 */
#ifndef LAUNCHER_JOB_SIGNALS_H
#define LAUNCHER_JOB_SIGNALS_H

#include "common/loop.h"

struct signals;

struct signals_events {
    void (*end)(int sig, void *arg);
    void (*pass)(int sig, void *arg);
    void (*stop)(void *arg); /* stop the ranks: we stop when this returns */
    void (*continued)(void *arg);
};

struct signals *signals_create(struct loop *loop, const struct signals_events *events,
                               void *arg, struct ddp_err *err);
void signals_destroy(struct signals *s);

#endif
