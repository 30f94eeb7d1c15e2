/* launcher/agent/mpi_service.h - what ranks that are MPI programs need of their launcher
 *
 * Two services, of which a rank uses the one that its MPI knows: PMIx (Open MPI), served
 * by a process that is started when the first rank connects (pmix_server.h), and PMI-1
 * and PMI-2 (MPICH and its kin), served here (pmi_server.h) over a descriptor that every
 * rank is given. Neither costs a rank that uses none of them more than some variables.
 *
 * Owner: the node's ranks, for one start of them.
 */
#ifndef LAUNCHER_AGENT_MPI_SERVICE_H
#define LAUNCHER_AGENT_MPI_SERVICE_H

#include "launcher/contract.h"
#include "launcher/link/message.h"
#include "launcher/spawn/reap.h"

struct mpi_service;

struct mpi_service_events {
    /* a frame for above: its body is `head` and then the data */
    void (*send)(enum msg_type type, const struct pack *head, const void *data,
                 size_t size, void *arg);
    /* MPI cannot be served, so that the job has to end: why */
    void (*failed)(const char *text, void *arg);
};

/* `job` and `share` are borrowed. What is in `job->mpi` is served as far as this build
 * and this machine can. */
struct mpi_service *mpi_service_create(struct loop *loop, struct reap *reap,
                                       const struct msg_job *job,
                                       const struct msg_share *share,
                                       const struct mpi_service_events *events,
                                       void *arg);
/* Ends the PMIx server at once, if it has not ended. */
void mpi_service_destroy(struct mpi_service *w);

/* Fill in what the ranks' environment has of it. */
void mpi_service_tell(const struct mpi_service *w, struct rank_facts *facts);
unsigned mpi_service_serves(const struct mpi_service *w); /* enum mpi_serve */

/* The rank's end of PMI, for the time of its start: borrowed, closed by
 * mpi_service_started(). -1: it has none. */
int mpi_service_open(struct mpi_service *w, uint32_t local);
void mpi_service_started(struct mpi_service *w, uint32_t local);

/* Ranks are about to be started that will connect: the server may start with them. */
void mpi_service_expect(struct mpi_service *w);

/* A rank has ended. Who has joined and ends well without having left is told of, and who
 * ends well and has never joined. */
void mpi_service_exited(struct mpi_service *w, uint32_t local,
                        const struct msg_exit *how);

/* FENCE or PEER from above. */
int mpi_service_hear(struct mpi_service *w, const struct frame *f, struct ddp_err *err);

/* No rank is left: the server goes, within two seconds, by itself or not. */
void mpi_service_stop(struct mpi_service *w);
bool mpi_service_has_server(const struct mpi_service *w);
bool mpi_service_is_server(const struct mpi_service *w, pid_t pid);

#endif
