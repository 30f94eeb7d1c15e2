/* launcher/plugins/mpi/mpi.h - services for MPI programs, as a plug-in
 *
 * The agents serve PMIx and PMI to their ranks (mpi_service.c); what ranks on different
 * nodes tell each other goes through the launcher (mpi_job.c).
 */
#ifndef LAUNCHER_PLUGINS_MPI_MPI_H
#define LAUNCHER_PLUGINS_MPI_MPI_H

struct job_plugin;
struct agent_plugin;

extern const struct job_plugin mpi_job;     /* mpi_job.c */
extern const struct agent_plugin mpi_agent; /* mpi_agent.c */

#endif
