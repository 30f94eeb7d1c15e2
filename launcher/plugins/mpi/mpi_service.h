/* launcher/plugins/mpi/mpi_service.h - process management services for MPI programs
 *
 * Two services: PMIx (Open MPI), by a process that is started when the first rank
 * connects (pmix_server.h), and PMI-1 and PMI-2 (MPICH and its derivatives), in the agent
 * (pmi_server.h), over a descriptor that every rank inherits. A rank that uses neither
 * only gets some environment variables and that descriptor.
 *
 * Owner: the plug-in (mpi_agent.c); one object per attempt.
 */
#ifndef LAUNCHER_PLUGINS_MPI_MPI_SERVICE_H
#define LAUNCHER_PLUGINS_MPI_MPI_SERVICE_H

#include "launcher/contract.h"
#include "launcher/link/message.h"
#include "launcher/transport/reap.h"

struct agent;
struct mpi_service;

/* `a` is borrowed, with its job and share. Serves those of `job.mpi` that this build and
 * this machine support. */
/* `mapping`: PMI_process_mapping, borrowed, may be NULL. `map`: as in msg_serve,
 * borrowed; empty until mpi_service_mapped(). */
struct mpi_service *mpi_service_create(struct agent *a, const char *mapping,
                                       const struct strv *map);
void mpi_service_mapped(struct mpi_service *w); /* the map has arrived */
/* Kills the PMIx server if it still runs. */
void mpi_service_destroy(struct mpi_service *w);

/* Set the fields of `facts` that the services put into the ranks' environment. */
void mpi_service_facts(const struct mpi_service *w, struct rank_facts *facts);
unsigned mpi_service_serves(const struct mpi_service *w); /* enum mpi_serve */

/* The PMI descriptor to be inherited by the rank, which the caller closes. -1: none. */
int mpi_service_open(struct mpi_service *w, uint32_t local);

/* Start the PMIx server now: the ranks about to start will connect to it. */
void mpi_service_expect(struct mpi_service *w);

/* A rank has exited. Reports a rank that exits with 0 while in MPI (no MPI_Finalize), or
 * without having been in MPI at all. */
void mpi_service_exited(struct mpi_service *w, uint32_t local,
                        const struct msg_exit *how);

/* Handle a FENCE or PEER frame from the parent. */
int mpi_service_on_frame(struct mpi_service *w, const struct frame *f,
                         struct ddp_err *err);

/* The attempt ends: no rank is reported as never in MPI. */
void mpi_service_ending(struct mpi_service *w);
/* No rank is left: close the PMIx server's link; after two seconds it is killed. */
void mpi_service_stop(struct mpi_service *w);
bool mpi_service_has_server(const struct mpi_service *w);
bool mpi_service_is_server(const struct mpi_service *w, pid_t pid);

#endif
