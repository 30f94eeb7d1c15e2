/* launcher/plugins/error_file/error_plugin.h - TORCHELASTIC_ERROR_FILE, as a plug-in
 *
 * Each rank gets a file for its exception. What a failed one has written there reaches
 * the launcher before its exit does, and stands in the report.
 */
#ifndef LAUNCHER_PLUGINS_ERROR_FILE_ERROR_PLUGIN_H
#define LAUNCHER_PLUGINS_ERROR_FILE_ERROR_PLUGIN_H

struct agent_plugin;

extern const struct agent_plugin error_file_agent; /* error_agent.c */

#endif
