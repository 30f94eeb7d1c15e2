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

static void set_reason(struct ddp_err *err, int error, const char *reason,
                       const char *fmt, va_list ap)
{
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s%s", reason,
                 error == EMFILE ? "; see 'ulimit -n'" : "");
}

int err_errno(struct ddp_err *err, const char *fmt, ...)
{
    if (err) {
        int saved = errno;
        va_list ap;
        va_start(ap, fmt);
        set_reason(err, saved, strerror(saved), fmt, ap);
        va_end(ap);
        errno = saved;
    }
    return -1;
}

int err_spawn(struct ddp_err *err, const char *fmt, ...)
{
    if (err) {
        int saved = errno;
        va_list ap;
        va_start(ap, fmt);
        set_reason(err, saved,
                   saved == EAGAIN
                       ? "too many processes; see 'ulimit -u', or pids.max of the cgroup"
                       : strerror(saved),
                   fmt, ap);
        va_end(ap);
        errno = saved;
    }
    return -1;
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
