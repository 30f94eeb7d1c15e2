/* common/background.h - calls that may block, one after another in a thread
 *
 * For calls into file systems and name services that may not answer: the loop goes on,
 * and gets the results in the order of the calls. The thread is started by the first call
 * and ends with the process or by background_end(), so its children (PR_SET_PDEATHSIG)
 * live as long. For one call that a caller waits for: common/offload.h.
 */
#ifndef COMMON_BACKGROUND_H
#define COMMON_BACKGROUND_H

#include "common/loop.h"

#include <stdbool.h>
#include <stdint.h>

/* The first member of a caller's struct, which belongs to the thread in between. */
struct background_call {
    void (*run)(struct background_call *c);            /* in the thread */
    void (*done)(struct background_call *c, bool ran); /* in the loop; frees it */
    struct background_call *next;                      /* internal */
};

struct background;
struct background *background_create(struct loop *l, struct ddp_err *err);

/* Without a thread (see 'ulimit -u') it is run at once, in the loop. */
void background_run(struct background *b, struct background_call *c);
/* Calls that have not begun are reported as not run, and never are. */
void background_drop(struct background *b);
/* How long the present call has taken; 0: there is none. */
int64_t background_busy_ms(struct background *b);

/* Drops what has not begun, and waits for the present call for up to 0.1 s. False: it
 * goes on in the thread, until it returns or the process exits; it is never reported, and
 * what it uses must not be freed. */
bool background_end(struct background *b);

#endif
