/* launcher/tools/fetch/main.c - ddprun-fetch: --fetch-data */
#include "launcher/tools/fetch/fetch.h"
#include "launcher/tools/tool.h"
#include "launcher/transport/child.h"

#include <stdio.h>

enum { EXIT_NOT_FETCHED = 1 };

int tool_run(const struct opts *opts, char *const *argv, struct ddp_err *err)
{
    int code = 0;
    if (child_init(err) < 0 || fetch_data(opts, err) < 0) {
        fprintf(stderr, "ddprun: %s\n", err->text);
        code = EXIT_NOT_FETCHED;
    }
    child_finish();
    return code;
}
