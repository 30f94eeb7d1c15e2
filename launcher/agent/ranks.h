/* launcher/agent/ranks.h - all ranks of one node: prepare, start, input, signals
 *
 * Owner: the agent.
 */
#ifndef LAUNCHER_AGENT_RANKS_H
#define LAUNCHER_AGENT_RANKS_H

#include "launcher/agent/rank_start.h"
#include "launcher/agent/worker_proc.h"
#include "launcher/link/message.h"
#include "launcher/transport/program.h"
#include "launcher/transport/reap.h"

/* Plug-ins may read it. */
struct ranks {
    struct agent *agent;                   /* borrowed */
    void (*stream_ended)(struct agent *a); /* of a rank */
    struct loop *loop;                     /* borrowed */
    struct reap *reap;                     /* borrowed */
    const struct msg_job *job;             /* borrowed */
    const struct msg_share *share;         /* borrowed */
    struct event *starter;                 /* owned: starts the next ranks */
    struct background *thread;             /* owned: prepares and starts */
    struct child_place *place;             /* owned: the thread's */
    struct event *slow;                    /* owned: timer for the thread's calls */
    uint64_t oom_kills;                    /* on this machine, before */
    bool warned;                           /* of the present one */
    int order_fd;                          /* owned: reap_order_fd() */
    struct prepare *prep;                  /* owned: the thread's until `prepared` */
    bool preparing, prepared;
    int starting;                 /* calls given to the thread: ranks, if `prepared` */
    int ahead;                    /* ... of this attempt, from `next` on */
    uint32_t attempt;             /* counts ranks_again() */
    struct worker_proc **workers; /* owned, by local rank; NULL: not started */
    uint64_t *taken;              /* owned, by local rank: bytes of input taken */
    uint64_t reported;            /* bytes of input reported as taken by all */
    int next;                     /* local rank to be started next, or in the thread */
    int until;                    /* the local rank after the last to be started */
    bool single;                  /* all were started: this one is again (singles.c) */
    struct worker_proc **former;  /* owned: of such ranks, for the rest of their output */
    size_t nformer;
    struct worker_proc *opened; /* owned: the next rank, by ranks_next(); NULL */
    struct evbuffer *early;     /* owned: input received before all were started */
    bool early_end;             /* end of input was received */
    bool stopped;
    bool *left;      /* owned, by local rank: it has exited by itself, in this attempt */
    bool failed;     /* one has, in this attempt */
    uint64_t credit; /* bytes of output that may be sent */
};

/* `a`, with its job and share, is borrowed. The thread looks for the programs at once;
 * ranks start in a later iteration of the loop. */
struct ranks *ranks_create(struct agent *a, void (*stream_ended)(struct agent *a),
                           struct ddp_err *err);
void ranks_destroy(struct ranks *r);

/* `again`: another attempt may follow: input is kept for it. */
void ranks_stop_starting(struct ranks *r, bool again);

/* Start another attempt, when all processes of the last one have exited: the caller has
 * updated job->attempt and the store's port. Input is not repeated. */
void ranks_again(struct ranks *r);

/* Start one rank again while the others run: it has exited, and its share may have other
 * variables. What is left of its process group is killed. */
bool ranks_may_start_one(const struct ranks *r, uint32_t local);
void ranks_start_one(struct ranks *r, uint32_t local);
/* For ranks.c: start the next one that is due; forget all, for another attempt. */
void singles_next(struct ranks *r);
void singles_forget(struct ranks *r);

void ranks_resize(struct ranks *r); /* pseudo-terminals, as the job's order says */
void ranks_signal(struct ranks *r, int sig); /* to all running ranks */
bool ranks_running(const struct ranks *r);   /* any of them */
bool ranks_succeeded(const struct ranks *r); /* all have exited with 0 */
/* Has the rank exited by itself whose group this is? Any rank, if it is 0. */
bool ranks_has_left(const struct ranks *r, pid_t group);
bool ranks_starting(const struct ranks *r);               /* the thread has some */
bool ranks_has_group(const struct ranks *r, pid_t group); /* a running rank's group */
/* 0: the rank does not run. `r` NULL: there are none yet. */
pid_t ranks_pid(const struct ranks *r, uint32_t local);
bool ranks_drained(const struct ranks *r); /* all streams have ended */
void ranks_cut(struct ranks *r, enum worker_cut which);

void ranks_credit(struct ranks *r, uint32_t n); /* allow n more bytes of output */
void ranks_input(struct ranks *r, const void *data, size_t n);

/* --- for a plug-in that starts ranks in another way (agent_plugin.start) ------------ */

/* The environment of a rank, without a note of what was changed in the user's. */
void ranks_env(struct ranks *r, uint32_t local, struct strv *env);

/* What the next rank needs. -1: out of descriptors. */
int ranks_next(struct ranks *r, struct next_rank *n);

/* The next rank is process `pid`, a child of ours. Returns whether it was the last. */
bool ranks_adopt(struct ranks *r, pid_t pid);
/* The core has to start the ranks that are left. */
void ranks_resume(struct ranks *r);

#endif
