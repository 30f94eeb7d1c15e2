/* launcher/agent/ranks.h - all ranks of one node: prepare, start, input, signals
 *
 * Owner: the agent.
 */
#ifndef LAUNCHER_AGENT_RANKS_H
#define LAUNCHER_AGENT_RANKS_H

#include "launcher/link/message.h"
#include "launcher/transport/program.h"
#include "launcher/transport/reap.h"

struct agent;
struct ranks;

/* `a`, with its job and share, is borrowed. Starting begins in the next loop iteration.
 */
struct ranks *ranks_create(struct agent *a);
void ranks_destroy(struct ranks *r);

/* With `again`, the interpreter that ranks are forked from is kept for ranks_again(). */
void ranks_stop_starting(struct ranks *r, bool again);

/* Start another attempt, when all processes of the last one have exited: the caller has
 * updated job->attempt and the store's port. Input is not repeated. */
void ranks_again(struct ranks *r);
pid_t ranks_helper(const struct ranks *r); /* that interpreter; 0: none */

void ranks_signal(struct ranks *r, int sig);              /* to all running ranks */
bool ranks_running(const struct ranks *r);                /* any of them */
bool ranks_has_group(const struct ranks *r, pid_t group); /* a running rank's group */
bool ranks_drained(const struct ranks *r);                /* all streams have ended */
void ranks_cut(struct ranks *r, bool idle_only);          /* as worker_cut() */

void ranks_credit(struct ranks *r, uint32_t n); /* allow n more bytes of output */
void ranks_input(struct ranks *r, const void *data, size_t n);

#endif
