/* launcher/plugins/preload/preload_plugin.h - --preload, as a plug-in */
#ifndef LAUNCHER_PLUGINS_PRELOAD_PRELOAD_PLUGIN_H
#define LAUNCHER_PLUGINS_PRELOAD_PRELOAD_PLUGIN_H

struct job_plugin;
struct agent_plugin;

extern const struct job_plugin preload_job;     /* preload_job.c: reports */
extern const struct agent_plugin preload_agent; /* preload_agent.c: forks ranks */

#endif
