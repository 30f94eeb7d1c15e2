/* launcher/agent/ranks.h - all ranks of one node: prepare, start, input, signals
 *
 * Owner: the agent. Events are reported by ranks_events, never from within
 * ranks_create().
 */
#ifndef LAUNCHER_AGENT_RANKS_H
#define LAUNCHER_AGENT_RANKS_H

#include "launcher/link/message.h"
#include "launcher/transport/program.h"
#include "launcher/transport/reap.h"

struct ranks;

struct ranks_events {
    /* bytes of a rank's stdout (0) or stderr (1); n == 0: end of file */
    void (*out)(int rank, unsigned stream, const void *data, size_t n, void *arg);
    void (*exited)(uint32_t local, const struct msg_exit *how, void *arg);
    /* `env` has the variables of contract.c: add others, or replace them */
    void (*env)(uint32_t local, struct strv *env, void *arg);
    void (*started)(uint32_t local, pid_t pid, void *arg);
    /* any other message to the launcher; after SPAWN_FAILED no further rank is started */
    void (*send)(enum msg_type type, const void *m, void *arg);
};

/* `job` is borrowed, `share` copied. Starting begins in the next loop iteration. */
struct ranks *ranks_create(struct loop *loop, struct reap *reap,
                           const struct msg_job *job, const struct msg_share *share,
                           const struct ranks_events *events, void *arg);
void ranks_destroy(struct ranks *r);

/* With `again`, the interpreter that ranks are forked from is kept for ranks_again(). */
void ranks_stop_starting(struct ranks *r, bool again);

/* Start another attempt, when all processes of the last one have exited: the caller has
 * updated job->attempt and the store's port. Input is not repeated. */
void ranks_again(struct ranks *r);
pid_t ranks_helper(const struct ranks *r); /* that interpreter; 0: none */

void ranks_signal(struct ranks *r, int sig); /* to all running ranks */
bool ranks_running(const struct ranks *r);   /* any rank, or their PMIx server */
bool ranks_has_group(const struct ranks *r, pid_t group); /* a running rank's group */
bool ranks_drained(const struct ranks *r);                /* all streams have ended */
void ranks_cut(struct ranks *r, bool idle_only);          /* as worker_cut() */

/* Whether `pid` is the ranks' PMIx server. */
bool ranks_has_server(const struct ranks *r, pid_t pid);
/* Handle a FENCE or PEER frame from the parent. */
int ranks_on_frame(struct ranks *r, const struct frame *f, struct ddp_err *err);

void ranks_credit(struct ranks *r, uint32_t n); /* allow n more bytes of output */
void ranks_input(struct ranks *r, const void *data, size_t n);

#endif
