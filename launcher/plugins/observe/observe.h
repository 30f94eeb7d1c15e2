/* launcher/plugins/observe/observe.h - the plug-in for who watches a job: --events */
#ifndef LAUNCHER_PLUGINS_OBSERVE_OBSERVE_H
#define LAUNCHER_PLUGINS_OBSERVE_OBSERVE_H

#include "launcher/job/plugin.h"

extern const struct job_plugin observe_job;

#endif
