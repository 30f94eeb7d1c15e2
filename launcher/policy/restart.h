/* launcher/policy/restart.h - restart policy (--max-restarts)
 *
 * An attempt is one run of all ranks; --max-restarts N allows N more after failed or
 * aborting ranks, and each of --spares N one more after a lost node, whose place it
 * takes. A failure that would recur (a lost node without a spare, a program that cannot
 * be started, exit status 93 of a rank) or a request to end (a signal, --timeout,
 * closed stdout) ends the job, even while ranks are being stopped for a restart.
 */
#ifndef LAUNCHER_POLICY_RESTART_H
#define LAUNCHER_POLICY_RESTART_H

#include "launcher/policy/cause.h"

struct restart {
    int max;      /* --max-restarts */
    int spares;   /* lost nodes that the job survives: --spares, --nnodes MIN:MAX; -1: any
                     number, as hosts may come back */
    int moved;    /* attempts that followed a lost node */
    int attempt;  /* from 0: TORCHELASTIC_RESTART_COUNT */
    bool moving;  /* the pending one does */
    bool pending; /* this attempt is being stopped, another one follows */
    bool over;    /* attempts are left, but the cause allows no restart */
};

/* Report the first failure of this attempt. Returns `pending`: whether another follows.
 */
bool restart_asked(struct restart *r, const struct cause *c);

/* Report a later failure. Returns whether it cancels a pending restart and ends the job.
 */
bool restart_cancelled(struct restart *r, const struct cause *c);

/* Would `c` have led to a restart, although the job ends? Then it cannot be the cause,
 * even if it happened earlier and was reported late. */
bool restart_ignores(const struct restart *r, const struct cause *c);

/* The next attempt begins. */
void restart_next(struct restart *r);

int restart_attempts(const struct restart *r); /* that are allowed; 0: any number */

/* ", attempt 2 of 3", or without a number of all of them; malloc'ed; "" when there can be
 * only one. */
char *restart_label(const struct restart *r);
char *restart_label_next(const struct restart *r); /* ", before attempt 3 of 3" */

#endif
