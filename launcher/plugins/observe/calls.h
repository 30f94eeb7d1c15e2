/* launcher/plugins/observe/calls.h - the current collective of each rank
 *
 * The page and --top also show which ranks wait in a collective, and for which ranks.
 * While one of them is open, the launcher asks the agents every INTERVAL_MS, or less
 * often if the ranks' answers are long: an answer costs a rank at most 0.1 % of a CPU.
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_CALLS_H
#define LAUNCHER_PLUGINS_OBSERVE_CALLS_H

#include "launcher/job/state.h"

#include <event2/buffer.h>

struct calls;

struct calls *calls_create(struct job *j);
void calls_destroy(struct calls *c);

/* Ask the agents, if it is time to; called for each request of a page while ranks run. */
void calls_ask(struct calls *c);
/* A node's answer; its text is described in diagnose/calls.h. */
void calls_take(struct calls *c, unsigned node, const struct msg_calls *m);
void calls_forget(struct calls *c); /* other ranks will run */

/* ["all_reduce #4", SECONDS, WAITS]: the collective that the rank is in, since when; if
 * it is done (WAITS is false), its last one. False: it is not known. */
bool calls_put_rank(struct calls *c, int rank, struct evbuffer *out);
/* An array of {"ranks": "0,2", "for": "1", "in": "all_reduce #4 of the default group",
 * "s": SECONDS} for waits of at least WAIT_MS, "for": members that have not entered it;
 * and of {"text"} for what plug-ins know (job_waits()). */
void calls_put_waits(struct calls *c, struct evbuffer *out);

#endif
