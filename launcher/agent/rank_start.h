/* launcher/agent/rank_start.h - what the ranks of a node need, and the start of each
 *
 * Programs, directory, CPUs and interface are looked up once, before the first rank. That
 * and each start, fork and exec, are done in a thread: file systems and name services may
 * not answer for long, and exec reads the program's file.
 */
#ifndef LAUNCHER_AGENT_RANK_START_H
#define LAUNCHER_AGENT_RANK_START_H

#include "common/background.h"
#include "launcher/agent/worker_proc.h"
#include "launcher/contract.h"
#include "launcher/link/message.h"
#include "launcher/place/bind.h"
#include "launcher/transport/child.h"

struct agent;

/* The program of some ranks (common/apps.h). */
struct program {
    uint32_t local;   /* the first one on this node, by local rank; ~0: none */
    struct strv argv; /* owned */
    char *path;       /* owned; NULL: not looked for yet */
    void **seen;      /* owned: what plug-ins have seen in its file; NULL: nothing */
};

struct programs {
    struct program *p; /* owned */
    size_t n;          /* 0: malformed */
};

/* `apps`: the job's, as at prepare_create(). */
struct program *programs_of(const struct programs *all, const struct strv *apps,
                            uint32_t rank);

/* The caller's, but the thread's while `call` runs. All pointers are owned. */
struct prepare {
    struct background_call call;
    void *arg; /* borrowed: the caller's */
    /* in */
    struct programs programs; /* each with its first rank here, or none */
    char *wdir;
    char *host;                /* for messages; NULL: only the launcher's own */
    char *loop_addr;           /* NULL, or: look for the interface towards it */
    struct strv env;           /* of all ranks */
    struct contract_base base; /* the same */
    enum bind_to bind_to;
    uint32_t nlocal;
    /* out */
    struct binding *bindings; /* by local rank */
    char *gloo_interface;     /* or NULL */
    char *other_python;       /* a warning, or NULL: the user's environment is not here */
    /* out, if it fails */
    int code; /* 0: it did not */
    uint32_t local;
    struct ddp_err err;
};

/* A copy of what the agent's job and share say. */
struct prepare *prepare_create(const struct agent *a);
/* Is it right for the present plan, too, which may have other hosts? */
bool prepare_fits(const struct prepare *p, const struct agent *a);
void prepare_run(struct background_call *c); /* call.run; enters the directory, too */
void prepare_free(struct prepare *p);

/* The environment of the local rank: the contract's, and plug-ins'; `prep` is done. With
 * `note`, changes to the user's own variables are logged. */
void rank_env_make(struct agent *a, const struct prepare *prep, uint32_t local, bool note,
                   struct strv *env);

/* What is made for a rank before it starts. */
struct next_rank {
    int streams[3];  /* owned: its descriptors 0, 1, 2; -1: /dev/null */
    int extra;       /* owned: its CHILD_EXTRA_FD; -1: none */
    struct strv env; /* owned */
};
void next_rank_finish(struct next_rank *n);

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
    struct next_rank next;
    bool terminal; /* the streams are a pseudo-terminal */
    /* out */
    pid_t pid; /* -1: it failed */
    int pidfd; /* the caller's; -1: none */
    int code;
    struct ddp_err err;
};

void rank_start_run(struct background_call *c); /* call.run */
void rank_start_free(struct rank_start *s);     /* not its worker, nor the pidfd */

#endif
