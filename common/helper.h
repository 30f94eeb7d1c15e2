/* common/helper.h - run a command (qsub, flux) for its output, with a deadline
 *
 * A command that prints nothing, or closes its output and does not exit, must not block
 * us. The calling process must not ignore SIGCHLD: then no exit status is kept.
 */
#ifndef COMMON_HELPER_H
#define COMMON_HELPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct helper {
    const char *const *argv; /* [0] is searched in PATH, unless it contains a slash */
    bool reads;              /* `in` is its stdin, else /dev/null */
    int in;                  /* borrowed */
    bool err_too;            /* capture its stderr too; else it is inherited */
    bool group;        /* what it starts is killed with it: after the deadline, and when
                        * we end meanwhile, also by SIGKILL (group_guard.h) */
    int64_t answer_ms; /* from the start until EOF on its output */
    size_t most;       /* bytes; further output is dropped */
    bool at_most;      /* kill it when it has printed `most` bytes: EFBIG */
};

/* Runs it to its end. Returns 0 with its wait status, or -1 with errno: why it cannot be
 * run, or ETIMEDOUT or EFBIG when it had to be killed. `output` is its output followed by
 * '\0' (`n` bytes without that), freed by the caller: also when it was killed, since a
 * command that printed but did not exit may have done its work; NULL when it was not run.
 */
int helper_ask(const struct helper *h, char **output, size_t *n, int *status);

#endif
