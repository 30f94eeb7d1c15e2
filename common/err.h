/* common/err.h - filling struct ddp_err
 *
 * Each setter returns -1, so that a failure reads as one line:
 *     return err_set(err, "unknown policy '%s'", name);
 * A NULL `err` is accepted. errno is left as it was.
 */
#ifndef COMMON_ERR_H
#define COMMON_ERR_H

#include "include/ddprun/err.h"

/* Set the message. */
int err_set(struct ddp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Set the message, then ": " and the text of errno, with advice where it is the same for
 * all callers (too many open files). */
int err_errno(struct ddp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The same where a process or thread could not be started: there EAGAIN is a limit. */
int err_spawn(struct ddp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Prepend "where: " to the message of a callee. */
int err_prefix(struct ddp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Leaves the calling function with -1 if this call returns less than 0. */
#define TRY(call)       \
    do {                \
        if ((call) < 0) \
            return -1;  \
    } while (0)

#endif
