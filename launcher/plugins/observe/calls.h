/* launcher/plugins/observe/calls.h - the collectives that ranks are in, who waits for whom
 *
 * For the page and --top: while one of them asks, the agents are asked every INTERVAL_MS
 * or, if the ranks' answers are long, so rarely that they cost a rank 0.1 % of a CPU.
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_CALLS_H
#define LAUNCHER_PLUGINS_OBSERVE_CALLS_H

#include "launcher/job/state.h"

#include <event2/buffer.h>

struct calls;

struct calls *calls_create(struct job *j);
void calls_destroy(struct calls *c); /* NULL is fine */

/* Someone looks: ask the agents, if it is time to. The ranks run. */
void calls_ask(struct calls *c);
/* An answer of a node: the text of diagnose/calls.h. */
void calls_take(struct calls *c, unsigned node, const struct msg_calls *m);
void calls_forget(struct calls *c); /* other ranks will run; NULL is fine */

/* ["all_reduce #4", SECONDS, WAITS]: the collective that the rank is in, since when; if
 * it is done (WAITS is false), its last one. False: it is not known. */
bool calls_put_rank(struct calls *c, int rank, struct evbuffer *out);
/* An array of {"ranks": [0, 2], "for": [1], "in": "all_reduce #4 of the default group",
 * "s": SECONDS} for waits of at least WAIT_MS, "for": members that have not entered it;
 * and of {"text"} for what plug-ins know (job_waits()). */
void calls_put_waits(struct calls *c, struct evbuffer *out);

#endif
