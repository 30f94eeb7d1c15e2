/* launcher/tools/scaling/main.c - ddprun-scaling: --scaling, here or as batch jobs */
#include "launcher/cli/cli.h"
#include "launcher/tools/scaling/scaling.h"
#include "launcher/tools/tool.h"

int tool_run(const struct opts *opts, char *const *argv, struct ddp_err *err)
{
    if (opts->script == SCHED_NONE && !opts->submit)
        return scaling_run(opts, argv, err);
    cli_warn(opts);
    return scaling_submit(opts, argv, err);
}
