/* common/err.h - filling struct ddp_err
 *
 * Each setter returns -1, so that a failure reads as one line:
 *     return err_set(err, "unknown policy '%s'", name);
 * A NULL `err` is accepted. errno is left as it was.
 */
#ifndef COMMON_ERR_H
#define COMMON_ERR_H

#include "include/ddprun/err.h"

/* The sentence itself. */
int err_set(struct ddp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The sentence, then ": " and what errno says, with what to try where that is the same
 * for all who may meet it (too many open files). */
int err_errno(struct ddp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Put "where: " in front of a sentence that a callee has set. */
int err_prefix(struct ddp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
