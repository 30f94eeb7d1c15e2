/* launcher/plugins/job_plugins.c - the plug-ins on the launcher's side, in the order in
 * which their hooks are called (launcher/job/plugin.h) */
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

const struct job_plugin *const job_plugins[] = {
    &observe_job,   /* --events, --ui, --metrics, --top */
    &mpi_job,       /* fences; ranks that never call MPI_Init */
    &preflight_job, /* --preflight */
    &preload_job,   /* reports of --preload */
    &restart_job,   /* --restart-delay, --max-no-progress */
    &health_job,    /* --health-check; before it, which waits for enough healthy hosts */
    &elastic_job,   /* --host-discovery-script, --node-wait, --grow */
    &store_job,     /* MASTER_ADDR and MASTER_PORT; admission to the store */
    &horovod_job,   /* --elastic horovod */
    &spawn_job,     /* MPI_Comm_spawn */
    &diagnose_job,  /* hang reports */
    &straggler_job, /* --stragglers */
    NULL,
};
