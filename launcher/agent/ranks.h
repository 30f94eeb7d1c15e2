/* launcher/agent/ranks.h - all ranks of one node: prepare, start, feed, end
 *
 * Owner: the agent. What happens is told through ranks_events; nothing is told from
 * within ranks_create().
 */
#ifndef LAUNCHER_AGENT_RANKS_H
#define LAUNCHER_AGENT_RANKS_H

#include "launcher/link/message.h"
#include "launcher/spawn/program.h"
#include "launcher/spawn/reap.h"

struct ranks;

struct ranks_events {
    /* bytes of a rank's stdout (0) or stderr (1); none: it has ended */
    void (*out)(int rank, unsigned stream, const void *data, size_t n, void *arg);
    /* what a rank that has failed wrote of it; told before its end */
    void (*error)(int rank, const char *text, void *arg);
    void (*exited)(const struct msg_exit *how, void *arg);
    /* every rank that takes input has taken so much more of it */
    void (*taken)(uint32_t n, void *arg);
    void (*spawned)(void *arg); /* all of them run */
    /* a frame for above: its body is `head` and then the data */
    void (*send)(enum msg_type type, const struct pack *head, const void *data,
                 size_t size, void *arg);
    /* `rank` (~0: all) cannot be started: our exit code, and the line; none is started
     * after it */
    void (*cannot)(uint32_t rank, int code, const char *text, void *arg);
};

/* `job` is borrowed, `share` copied. Starting begins with the next turn of the loop. */
struct ranks *ranks_create(struct loop *loop, struct reap *reap,
                           const struct msg_job *job, const struct msg_share *share,
                           const struct ranks_events *events, void *arg);
void ranks_destroy(struct ranks *r);

/* With `again` the interpreter that ranks are forked from is kept for ranks_again(). */
void ranks_stop_starting(struct ranks *r, bool again);

/* One more attempt, when everything of the last one has ended: job->attempt and the port
 * of the store are new. What was fed to its stdin is not fed again. */
void ranks_again(struct ranks *r);
pid_t ranks_helper(const struct ranks *r); /* that interpreter; 0: none */

void ranks_signal(struct ranks *r, int sig); /* those that run */
bool ranks_running(const struct ranks *r);   /* does any, or what serves them? */
bool ranks_has_group(const struct ranks *r, pid_t group); /* of one that runs */
bool ranks_drained(const struct ranks *r);                /* all streams have ended */
void ranks_cut(struct ranks *r, bool idle_only);          /* as worker_cut() */

/* Not a rank, but the PMIx server that serves them. */
bool ranks_has_server(const struct ranks *r, pid_t pid);
/* FENCE or PEER from above. */
int ranks_on_frame(struct ranks *r, const struct frame *f, struct ddp_err *err);

void ranks_credit(struct ranks *r, uint32_t n); /* so many more bytes of output */
void ranks_input(struct ranks *r, const void *data, size_t n);

#endif
