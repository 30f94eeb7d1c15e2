/* launcher/plugins/agent_plugins.c - the plug-ins on the nodes' side, in the order in
 * which their hooks are called (launcher/agent/plugin.h) */
#include "launcher/agent/plugin.h"
#include "launcher/plugins/mpi/mpi.h"
#include "launcher/plugins/preflight/preflight.h"
#include "launcher/plugins/store/store.h"

const struct agent_plugin *const agent_plugins[] = {
    &mpi_agent,
    &preflight_agent,
    &store_agent,
    NULL,
};
