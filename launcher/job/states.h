/* launcher/job/states.h - the state that a job is in, and the failure that ends it
 *
 * A job calls upwards by one table only (job.c): what a state does when something has
 * happened, or when its time limit has passed, and where the frames of agents go. So a
 * file includes, and calls, only those that come before it in the job's life:
 *
 *     report, describe, nodes   lines for the user; what is to be run, and where; links
 *     states, io                the first failure stops all ranks; output and input
 *     spares, losses            the nodes of the next attempt; nodes that are lost
 *     attempt, hosts, heartbeat the ranks get their orders; hosts that come and go
 *     gather                    agents are started
 *     messages, shutdown        handlers of their messages; the end, or a restart
 *     job, dryrun               the table, and the event loop
 *
 * The first cause of a failure starts the escalating shutdown of all ranks
 * (policy/grace.h), and is reported as soon as they have ended, or a little later. See
 * job_fail() and job_end() in plugin.h.
 */
#ifndef LAUNCHER_JOB_STATES_H
#define LAUNCHER_JOB_STATES_H

#include "launcher/job/state.h"

struct job_table {
    struct job_step {
        const char *name;
        int64_t (*limit_ms)(const struct job *j); /* NULL, or 0: none */
        void (*late)(struct job *j);
        void (*check)(struct job *j); /* is it complete? NULL: it ends otherwise */
    } steps[JOB_DONE + 1];
    void (*frame)(struct job *j, struct link *l, const struct frame *f);
    void (*link_closed)(struct job *j, struct link *l, const char *why);
};

/* ms for a reader to consume the rest of the output after a signal or --timeout */
enum { HURRY_MS = 2000 };

void job_states_open(struct job *j);
void job_states_close(struct job *j);

void job_move(struct job *j, enum job_state to, const char *why); /* writes `state` */
void job_limit(struct job *j); /* restart the time limit of the present state */
/* Set the mode of our terminal as the state needs it (terminal.h). */
void job_set_terminal(struct job *j);

/* Report this attempt's failure, and reset the cause for the next one. */
void job_forget_cause(struct job *j);

#endif
