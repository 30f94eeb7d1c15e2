/* launcher/policy/restart.h - may a job that has failed begin again?
 *
 * An attempt is one life of all ranks; --max-restarts N allows N more after the first.
 * Only the bad end of a rank is forgiven. What a second attempt would meet again (a lost
 * node, a program that cannot be started), or what somebody wants (a signal, --timeout,
 * nobody reads the output any more) is the end of the job, also when it comes while an
 * attempt is being ended so that the next can begin.
 */
#ifndef LAUNCHER_POLICY_RESTART_H
#define LAUNCHER_POLICY_RESTART_H

#include "launcher/policy/cause.h"

struct restart {
    int max;      /* --max-restarts */
    int attempt;  /* from 0: TORCHELASTIC_RESTART_COUNT */
    bool pending; /* this attempt is being ended, and another one follows */
    bool over;    /* none follows, although one might have: there is another cause */
};

/* The first failure of this attempt. Returns whether another follows: then `pending`. */
bool restart_asked(struct restart *r, const struct cause *c);

/* One more failure. Returns whether it ends the job although another attempt was to
 * follow, which is no longer `pending` then. */
bool restart_cancelled(struct restart *r, const struct cause *c);

/* Would this have been forgiven, so that it cannot be what ended the job? It may have
 * happened before that, and be told later. */
bool restart_ignores(const struct restart *r, const struct cause *c);

/* The next attempt begins. */
void restart_next(struct restart *r);

/* ", attempt 2 of 3", malloc'ed; "" when there can be only one. */
char *restart_label(const struct restart *r);

#endif
