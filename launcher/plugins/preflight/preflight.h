/* launcher/plugins/preflight/preflight.h - --preflight: check every host for this job
 *
 * Agents are started as for a job, in the same way and as the same user. Instead of ranks
 * they run checks: first of the node, then of the connection to the next node. The
 * launcher compares the findings of all hosts, prints them as a table, and each problem
 * with its remedy as a line. The program is not run.
 */
#ifndef LAUNCHER_PLUGINS_PREFLIGHT_PREFLIGHT_H
#define LAUNCHER_PLUGINS_PREFLIGHT_PREFLIGHT_H

struct job_plugin;
struct agent_plugin;

extern const struct job_plugin preflight_job;     /* preflight.c */
extern const struct agent_plugin preflight_agent; /* probe.c */

#endif
