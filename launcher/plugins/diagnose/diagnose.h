/* launcher/plugins/diagnose/diagnose.h - the plug-in that reports hangs (doc/hangs.md)
 *
 * INQUIRE requests from the agents what their ranks do; each runs ddprun-diagnose, which
 * does not block the agent, and passes its output on in ANSWERs, the last of them without
 * data. The launcher runs it again, to evaluate all answers.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_DIAGNOSE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_DIAGNOSE_H

#include "launcher/agent/plugin.h"
#include "launcher/job/plugin.h"

extern const struct agent_plugin diagnose_agent;
extern const struct job_plugin diagnose_job;

/* --stragglers */
extern const struct agent_plugin straggler_agent;
extern const struct job_plugin straggler_job;

#endif
