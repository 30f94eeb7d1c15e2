/* launcher/tools/tool.c - see tool.h */
#include "launcher/tools/tool.h"

#include "common/err.h"
#include "launcher/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

enum { EXIT_USAGE = 2 };

int main(int argc, char **argv)
{
    struct opts opts;
    struct ddp_err err;
    int code = cli_parse(argc, argv, &opts, &err);
    if (code == 0)
        code = tool_run(&opts, argv, &err);
    else if (code > 0) /* --help, --version */
        code = 0;
    if (code == 0 && fflush(stdout) != 0)
        code = err_errno(&err, "cannot write");
    if (code < 0) {
        fprintf(stderr, "ddprun: %s\n", err.text);
        code = EXIT_USAGE;
    }
    opts_finish(&opts);
    return code;
}
