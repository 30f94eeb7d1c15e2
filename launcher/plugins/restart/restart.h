/* launcher/plugins/restart/restart.h - the plug-in that decides on another attempt:
 * --restart-delay, --max-no-progress */
#ifndef LAUNCHER_PLUGINS_RESTART_RESTART_H
#define LAUNCHER_PLUGINS_RESTART_RESTART_H

#include "launcher/job/plugin.h"

extern const struct job_plugin restart_job;

#endif
