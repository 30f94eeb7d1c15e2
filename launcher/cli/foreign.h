/* launcher/cli/foreign.h - options of mpirun, mpiexec, torchrun and horovodrun that
 * ddprun does not have under their names
 *
 * Private to the front. Each either means one of ours, becomes a variable of the ranks,
 * has no effect here, or is refused with what to write instead.
 */
#ifndef LAUNCHER_CLI_FOREIGN_H
#define LAUNCHER_CLI_FOREIGN_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stdbool.h>

struct foreign {
    const char *names; /* separated by blanks, no dashes */
    int values;        /* words that follow it: 0, 1 or 2 */
    enum {
        FOREIGN_OURS, /* is our option `text`, with `fixed` if it takes no value itself */
        FOREIGN_VARIABLE, /* `text` and its values make "NAME=VALUE" for the ranks */
        FOREIGN_IGNORED,  /* changes nothing that ddprun does */
        FOREIGN_REFUSED,  /* `text` is what to do */
    } answer;
    const char *text, *fixed;
};

/* The row that `word` names ("--rdzv-id=7"), or NULL. */
const struct foreign *foreign_find(const char *word);

/* "OMPI_MCA_a=b" of a FOREIGN_VARIABLE with these values; the caller frees. */
char *foreign_variable(const struct foreign *f, const char *const *values);

/* One line for all options that were refused; returns -1. */
int foreign_refuse(const struct strv *refused, struct ddp_err *err);

/* For `refused`: "'--rankfile': order the hosts ...". */
void foreign_complain(const struct foreign *f, const char *word, struct strv *refused);

#endif
