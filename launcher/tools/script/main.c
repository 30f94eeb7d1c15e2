/* launcher/tools/script/main.c - ddprun-script: --script, --submit, --list-sites */
#include "launcher/cli/cli.h"
#include "launcher/tools/script/script.h"
#include "launcher/tools/tool.h"

#include <stdio.h>

int tool_run(const struct opts *opts, char *const *argv, struct ddp_err *err)
{
    if (!opts->list_sites) {
        cli_warn(opts);
        return script_run(opts, argv, err);
    }
    site_list(stdout);
    return 0;
}
