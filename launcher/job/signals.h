/* launcher/job/signals.h - signals to ddprun, delivered as callbacks from the event loop
 *
 * INT, TERM, HUP and QUIT end the job; USR1, USR2, WINCH and a few more are forwarded to
 * the ranks; TSTP and CONT stop and continue the ranks, and then ddprun itself.
 */
#ifndef LAUNCHER_JOB_SIGNALS_H
#define LAUNCHER_JOB_SIGNALS_H

#include "common/loop.h"

struct signals;

struct signals_events {
    void (*end)(int sig, void *arg);
    void (*pass)(int sig, void *arg);
    void (*stop)(void *arg); /* stop the ranks; ddprun stops when this returns */
    void (*continued)(void *arg);
};

/* Early in main(): signals that are forwarded wait for signals_create(). Other ones are
 * not blocked, whatever our parent may have left. */
void signals_hold(void);
struct signals *signals_create(struct loop *loop, const struct signals_events *events,
                               void *arg, struct ddp_err *err);
/* When the job is over: no signal may end ddprun before it returns the exit code. */
void signals_block_ends(void);
/* Then those that end the job have their default action, and the others are blocked. */
void signals_destroy(struct signals *s);

#endif
