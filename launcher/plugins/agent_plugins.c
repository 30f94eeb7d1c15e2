/* launcher/plugins/agent_plugins.c - the plug-ins on the nodes' side, in the order in
 * which their hooks are called (launcher/agent/plugin.h) */
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"

const struct agent_plugin *const agent_plugins[] = {
    &error_file_agent,  /* TORCHELASTIC_ERROR_FILE */
    &gpu_jobs_agent,    /* DCGM_HPC_JOB_MAPPING_DIR */
    &kept_memory_agent, /* DDPRUN_KEPT_MEMORY */
    &mpi_agent,         /* PMIx and PMI */
    &observe_agent,     /* measures for the page, --top and --metrics */
    &preflight_agent,   /* checks of the node */
    &preload_agent,     /* forks Python ranks */
    &store_agent,       /* hosts the store, vouches for its clients */
    &diagnose_agent,    /* hang reports, --stragglers */
    &health_agent,      /* --health-check */
    &horovod_agent,     /* --elastic horovod: key-value server, requests to ranks */
    NULL,
};
