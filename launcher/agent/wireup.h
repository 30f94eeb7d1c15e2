/* launcher/agent/wireup.h - what ranks that are MPI programs need of their launcher
 *
 * Two services, of which a rank uses the one that its MPI knows: PMIx (Open MPI), served
 * by a process that is started when the first rank connects (pmix_server.h), and PMI-1
 * and PMI-2 (MPICH and its kin), served here (pmi_server.h) over a descriptor that every
 * rank is given. Neither costs a rank that uses none of them more than some variables.
 *
 * Owner: the node's ranks, for one start of them.
 */
#ifndef LAUNCHER_AGENT_WIREUP_H
#define LAUNCHER_AGENT_WIREUP_H

#include "launcher/contract.h"
#include "launcher/link/message.h"
#include "launcher/spawn/reap.h"

struct wireup;

struct wireup_events {
    /* a frame for above: its body is `head` and then the data */
    void (*send)(enum msg_type type, const struct pack *head, const void *data,
                 size_t size, void *arg);
    /* MPI cannot be served, so that the job has to end: why */
    void (*failed)(const char *text, void *arg);
};

/* `job` and `share` are borrowed. What is in `job->mpi` is served as far as this build
 * and this machine can. */
struct wireup *wireup_create(struct loop *loop, struct reap *reap,
                             const struct msg_job *job, const struct msg_share *share,
                             const struct wireup_events *events, void *arg);
/* Ends the PMIx server at once, if it has not ended. */
void wireup_destroy(struct wireup *w);

/* Fill in what the ranks' environment has of it. */
void wireup_tell(const struct wireup *w, struct rank_facts *facts);
unsigned wireup_serves(const struct wireup *w); /* enum mpi_serve */

/* The rank's end of PMI, for the time of its start: borrowed, closed by wireup_started().
 * -1: it has none. */
int wireup_open(struct wireup *w, uint32_t local);
void wireup_started(struct wireup *w, uint32_t local);

/* Ranks are about to be started that will connect: the server may start with them. */
void wireup_expect(struct wireup *w);

/* A rank has ended. Who has joined and ends well without having left is told of, and who
 * ends well and has never joined. */
void wireup_exited(struct wireup *w, uint32_t local, const struct msg_exit *how);

/* FENCE or PEER from above. */
int wireup_hear(struct wireup *w, const struct frame *f, struct ddp_err *err);

/* No rank is left: the server goes, within two seconds, by itself or not. */
void wireup_stop(struct wireup *w);
bool wireup_has_server(const struct wireup *w);
bool wireup_is_server(const struct wireup *w, pid_t pid);

#endif
