/* common/helper.h - a command that is run for its answer (qsub, flux), with a deadline
 *
 * One that says nothing, or has closed its output and does not end, must not keep us.
 * The process must not ignore SIGCHLD, or it would never hear of an end.
 */
#ifndef COMMON_HELPER_H
#define COMMON_HELPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct helper {
    const char *const
        *argv;         /* [0] is looked for in PATH, unless there is a slash in it */
    bool reads;        /* `in` is its stdin, else there is nothing to read */
    int in;            /* borrowed */
    bool err_too;      /* its stderr is heard as its stdout is, else it is ours */
    int64_t answer_ms; /* from now until its output is closed */
    size_t most;       /* bytes; what it says beyond them is dropped */
};

/* Runs it to its end. Returns 0 with its wait status, or -1 with errno: why it cannot be
 * run, or ETIMEDOUT when it had to be killed. `said` has what was heard, with a '\0'
 * behind it (`n` bytes without that), which the caller frees: also after ETIMEDOUT, as
 * who has said something and does not end may have done its work; NULL when it was not
 * run. */
int helper_ask(const struct helper *h, char **said, size_t *n, int *status);

#endif
