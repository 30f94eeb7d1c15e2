/* common/err.c - see err.h */
#include "common/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct ddp_err *err, const char *fmt, ...)
{
    if (err) {
        int saved = errno;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        errno = saved;
    }
    return -1;
}

/* The text, and what errno says. `limit` is for EAGAIN, if given. Keeps errno. */
static int set_reason(struct ddp_err *err, const char *limit, const char *fmt, va_list ap)
{
    if (!err)
        return -1;
    int error = errno;
    const char *reason = error == EAGAIN && limit ? limit : strerror(error);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s%s", reason,
                 error == EMFILE ? "; see 'ulimit -n'" : "");
    errno = error;
    return -1;
}

int err_errno(struct ddp_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = set_reason(err, NULL, fmt, ap);
    va_end(ap);
    return rc;
}

int err_spawn(struct ddp_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = set_reason(
        err, "too many processes; see 'ulimit -u', or pids.max of the cgroup", fmt, ap);
    va_end(ap);
    return rc;
}

int err_prefix(struct ddp_err *err, const char *fmt, ...)
{
    if (err) {
        int saved = errno;
        struct ddp_err old = *err;
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof err->text)
            snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", old.text);
        errno = saved;
    }
    return -1;
}
