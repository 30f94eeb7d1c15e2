/* launcher/plugins/kept_memory/kept_memory.h - DDPRUN_KEPT_MEMORY, as a plug-in
 *
 * In a job that may restart, the ranks of a host get a file in their agent's memory. It
 * stays while the agent runs: the ranks of the next attempt find in it what those of the
 * last one left there. A memfd has no name and no folder: however agent and ranks end,
 * the kernel frees it, so there is nothing to clean up.
 */
#ifndef LAUNCHER_PLUGINS_KEPT_MEMORY_KEPT_MEMORY_H
#define LAUNCHER_PLUGINS_KEPT_MEMORY_KEPT_MEMORY_H

struct agent_plugin;

extern const struct agent_plugin kept_memory_agent;

#endif
