/* launcher/agent/prepare.h - what the ranks of a node need, before the first is started
 *
 * Programs, directory, CPUs and interface are looked up in a thread: their file systems
 * and name services may not answer for long.
 */
#ifndef LAUNCHER_AGENT_PREPARE_H
#define LAUNCHER_AGENT_PREPARE_H

#include "common/background.h"
#include "launcher/agent/programs.h"
#include "launcher/contract.h"
#include "launcher/place/bind.h"

/* The caller's, but the thread's while `call` runs. All pointers are owned. */
struct prepare {
    struct background_call call;
    void *arg; /* borrowed: the caller's */
    /* in */
    struct programs programs; /* each with its first rank here, or none */
    char *wdir;
    char *host;                /* for messages; NULL: there is no other */
    char *loop_addr;           /* NULL, or: look for the interface towards it */
    struct strv env;           /* of all ranks */
    struct contract_base base; /* the same */
    enum bind_to bind_to;
    uint32_t nlocal;
    /* out */
    struct binding *bindings; /* by local rank */
    char *gloo_interface;     /* or NULL */
    /* out, if it fails */
    int code; /* 0: it did not */
    uint32_t local;
    struct ddp_err err;
};

struct agent;
/* A copy of what the agent's job and share say. */
struct prepare *prepare_create(const struct agent *a);
void prepare_run(struct background_call *c); /* call.run; enters the directory, too */
void prepare_free(struct prepare *p);

#endif
