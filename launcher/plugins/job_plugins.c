/* launcher/plugins/job_plugins.c - the plug-ins on the launcher's side, in the order in
 * which their hooks are called (launcher/job/plugin.h) */
#include "launcher/job/plugin.h"
#include "launcher/plugins/diagnose/diagnose.h"
#include "launcher/plugins/mpi/mpi.h"
#include "launcher/plugins/observe/observe.h"
#include "launcher/plugins/preflight/preflight.h"
#include "launcher/plugins/preload/preload_plugin.h"
#include "launcher/plugins/restart/restart.h"
#include "launcher/plugins/store/store.h"

const struct job_plugin *const job_plugins[] = {
    &observe_job,   /* --events, --ui, --metrics, --top */
    &mpi_job,       /* fences; ranks that never call MPI_Init */
    &preflight_job, /* --preflight */
    &preload_job,   /* reports of --preload */
    &restart_job,   /* --restart-delay, --max-no-progress */
    &store_job,     /* MASTER_ADDR and MASTER_PORT; admission to the store */
    &diagnose_job,  /* hang reports */
    &straggler_job, /* --stragglers */
    NULL,
};
