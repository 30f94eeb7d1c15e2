/* launcher/agent/rank_start.h - one start of a rank, in the agent's thread
 *
 * fork and exec, and the reason if they fail: exec reads the program's file.
 */
#ifndef LAUNCHER_AGENT_RANK_START_H
#define LAUNCHER_AGENT_RANK_START_H

#include "launcher/agent/prepare.h"
#include "launcher/agent/worker_proc.h"
#include "launcher/transport/child.h"

/* The caller's, but the thread's while `call` runs. */
struct rank_start {
    struct background_call call;
    void *arg;                  /* borrowed: the caller's */
    struct worker_proc *worker; /* owned; the thread does not use it */
    uint32_t local, attempt;
    /* in */
    const struct prepare *prep; /* borrowed: must outlive the call */
    const struct program *program;
    const struct binding *binding;
    const struct child_place *place; /* borrowed, the same */
    int order_fd;                    /* borrowed: reap_order_fd() */
    int streams[3];                  /* owned: the rank's ends; -1: none, or closed */
    int extra;                       /* owned: its CHILD_EXTRA_FD; -1: none */
    struct strv env;                 /* owned */
    bool terminal;                   /* the streams are a pseudo-terminal */
    /* out */
    pid_t pid; /* -1: it failed */
    int pidfd; /* the caller's; -1: none */
    int code;
    struct ddp_err err;
};

void rank_start_run(struct background_call *c); /* call.run */
void rank_start_free(struct rank_start *s);     /* not its worker, nor the pidfd */

#endif
