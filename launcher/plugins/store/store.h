/* launcher/plugins/store/store.h - the job's store (MASTER_ADDR, MASTER_PORT) as a
 * plug-in
 *
 * The agent of rank 0's node hosts it; admission of its clients involves all agents.
 */
#ifndef LAUNCHER_PLUGINS_STORE_STORE_H
#define LAUNCHER_PLUGINS_STORE_STORE_H

struct job_plugin;
struct agent_plugin;

extern const struct job_plugin store_job;     /* store_job.c */
extern const struct agent_plugin store_agent; /* store_agent.c */

#endif
