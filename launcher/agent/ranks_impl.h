/* launcher/agent/ranks_impl.h - what ranks.c and ranks_fork.c share */
#ifndef LAUNCHER_AGENT_RANKS_IMPL_H
#define LAUNCHER_AGENT_RANKS_IMPL_H

#include "launcher/agent/ranks.h"
#include "launcher/agent/worker_proc.h"

struct ranks {
    struct loop *loop;         /* borrowed */
    struct reap *reap;         /* borrowed */
    const struct msg_job *job; /* borrowed */
    struct msg_share share;    /* owned */
    struct ranks_events events;
    void *arg;
    struct event *starter;    /* owned: the next batch */
    struct offload *search;   /* owned: for the program, in a thread; NULL: not begun */
    int64_t search_until_ms;  /* monotonic */
    bool searched;            /* and it has returned */
    char *path;               /* owned: of the program; NULL: not looked for yet */
    char *gloo_interface;     /* owned, or NULL */
    struct strv base;         /* environment without what is a rank's own */
    struct binding *bindings; /* owned, by local rank */
    struct worker_proc **workers; /* owned, by local rank; NULL: not started */
    int *error_files;             /* owned, by local rank; -1: none */
    uint64_t *taken;              /* owned: input each of them has taken */
    uint64_t told;                /* and what has been reported */
    int next;                     /* to be started */
    struct preload *preload;     /* owned: ranks are forked from it; NULL: they are not */
    bool ready;                  /* and it has imported */
    struct worker_proc *halfway; /* owned: being forked */
    struct preload_report *savings; /* owned; NULL: nobody asks */
    struct mpi_service *wireup;     /* owned: for those that are MPI programs */
    struct evbuffer *early;         /* owned: input that came before all were started */
    bool early_end;                 /* and nothing comes after it, or has come */
    bool stopped;
    bool between;    /* two attempts: input is kept for the next */
    uint64_t credit; /* bytes of output that may be sent */
};

/* ranks.c */
extern const struct worker_events ranks_worker_events;
bool ranks_takes_input(const struct ranks *r, uint32_t rank);
bool ranks_tells_notes(const struct ranks *r, uint32_t local);
void ranks_env(struct ranks *r, uint32_t local, bool note, struct strv *env);
void ranks_started(struct ranks *r, struct worker_proc *w); /* number r->next */

/* ranks_fork.c: is it thought of at all; begin, which sets r->preload or not; the next
 * rank; forget the one that is halfway; end it */
bool ranks_may_fork(const struct ranks *r);
void ranks_start_forking(struct ranks *r);
void ranks_fork_next(struct ranks *r);
void ranks_drop_fork(struct ranks *r);
void ranks_end_forking(struct ranks *r);

#endif
