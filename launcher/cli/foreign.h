/* launcher/cli/foreign.h - options of mpirun, mpiexec, torchrun and horovodrun that
 * ddprun has under another name or not at all
 *
 * Private to launcher/cli/. Each is translated to an option of ddprun or to a variable of
 * the ranks, ignored, or refused with a hint.
 */
#ifndef LAUNCHER_CLI_FOREIGN_H
#define LAUNCHER_CLI_FOREIGN_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stdbool.h>

struct foreign {
    const char *names; /* separated by blanks, no dashes */
    int values;        /* number of its arguments: 0, 1 or 2 */
    enum {
        FOREIGN_OURS, /* our option `text`, with value `fixed` if it has none itself */
        FOREIGN_VARIABLE, /* a variable of the ranks, "NAME=VALUE" by foreign_variable()
                           */
        FOREIGN_IGNORED,  /* no effect */
        FOREIGN_REFUSED,  /* `text` is the hint */
    } answer;
    const char *text, *fixed;
};

/* The row for option `word` ("--rdzv-id=7"), or NULL. */
const struct foreign *foreign_find(const char *word);

/* "OMPI_MCA_a=b" of a FOREIGN_VARIABLE with these values; the caller frees. */
char *foreign_variable(const struct foreign *f, const char *const *values);

/* Sets `err` to one line for all refused options; returns -1. */
int foreign_refuse(const struct strv *refused, struct ddp_err *err);

/* Append to `refused`: "'--rankfile': list the hosts ...". */
void foreign_complain(const struct foreign *f, const char *word, struct strv *refused);

#endif
