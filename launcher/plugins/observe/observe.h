/* launcher/plugins/observe/observe.h - the plug-in that shows a job: events, page,
 * metrics, --top */
#ifndef LAUNCHER_PLUGINS_OBSERVE_OBSERVE_H
#define LAUNCHER_PLUGINS_OBSERVE_OBSERVE_H

#include "launcher/agent/plugin.h"
#include "launcher/job/plugin.h"

extern const struct job_plugin observe_job;
extern const struct agent_plugin observe_agent;

#endif
