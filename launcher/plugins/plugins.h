/* launcher/plugins/plugins.h - the plug-ins, for the tables that list them
 *
 * Each is defined in its own folder; job_plugins.c and agent_plugins.c say what it does.
 */
#ifndef LAUNCHER_PLUGINS_PLUGINS_H
#define LAUNCHER_PLUGINS_PLUGINS_H

struct job_plugin;
struct agent_plugin;

extern const struct job_plugin observe_job, mpi_job, preflight_job, preload_job,
    restart_job, store_job, diagnose_job, straggler_job, elastic_job, health_job,
    horovod_job, spawn_job;
extern const struct agent_plugin error_file_agent, kept_memory_agent, mpi_agent,
    observe_agent, preflight_agent, preload_agent, store_agent, diagnose_agent,
    gpu_jobs_agent, health_agent, horovod_agent;

#endif
