/* launcher/agent/ranks_impl.h - definitions shared by ranks.c and ranks_fork.c */
#ifndef LAUNCHER_AGENT_RANKS_IMPL_H
#define LAUNCHER_AGENT_RANKS_IMPL_H

#include "launcher/agent/ranks.h"
#include "launcher/agent/worker_proc.h"

struct ranks {
    struct agent *agent;           /* borrowed */
    struct loop *loop;             /* borrowed */
    struct reap *reap;             /* borrowed */
    const struct msg_job *job;     /* borrowed */
    const struct msg_share *share; /* borrowed */
    struct event *starter;         /* owned: starts the next batch */
    struct offload *search;       /* owned: program search in a thread; NULL: not begun */
    int64_t search_until_ms;      /* monotonic */
    bool searched;                /* the search has returned */
    char *path;                   /* owned: of the program; NULL: not found yet */
    char *gloo_interface;         /* owned, or NULL */
    struct strv base;             /* environment without the per-rank variables */
    struct binding *bindings;     /* owned, by local rank */
    struct worker_proc **workers; /* owned, by local rank; NULL: not started */
    int *error_files;             /* owned, by local rank; -1: none */
    uint64_t *taken;              /* owned, by local rank: bytes of input taken */
    uint64_t reported;            /* bytes of input reported as taken by all */
    int next;                     /* local rank to be started next */
    struct preload *preload;      /* owned: ranks are forked from it; NULL: not used */
    bool ready;                   /* its imports are done */
    struct worker_proc *forking;  /* owned: the rank being forked */
    struct preload_report *report; /* owned; NULL: no --report */
    struct evbuffer *early;        /* owned: input received before all were started */
    bool early_end;                /* end of input was received */
    bool stopped;
    bool between;    /* between two attempts: input is kept for the next */
    uint64_t credit; /* bytes of output that may be sent */
};

/* ranks.c */
extern const struct worker_events ranks_worker_events;
bool ranks_takes_input(const struct ranks *r, uint32_t rank);
bool ranks_logs_env(const struct ranks *r, uint32_t local);
void ranks_env(struct ranks *r, uint32_t local, bool note, struct strv *env);
void ranks_started(struct ranks *r, struct worker_proc *w); /* local rank r->next */

/* ranks_fork.c: whether to try at all; begin, which sets r->preload on success; fork the
 * next rank; cancel the rank being forked; stop */
bool ranks_may_fork(const struct ranks *r);
void ranks_start_forking(struct ranks *r);
void ranks_fork_next(struct ranks *r);
void ranks_drop_fork(struct ranks *r);
void ranks_end_forking(struct ranks *r);

#endif
