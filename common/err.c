/* common/err.c - see err.h */
#include "common/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A text while it is composed: a path has up to 4096 bytes. */
struct draft {
    char text[6 << 10];
    size_t n;
};

static void draft_add(struct draft *d, const char *fmt, va_list ap)
{
    size_t room = sizeof d->text - d->n;
    int n = vsnprintf(d->text + d->n, room, fmt, ap);
    d->n += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

static void draft_addf(struct draft *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    draft_add(d, fmt, ap);
    va_end(ap);
}

/* The middle of a long text is left out, such as that of a path: its end is the reason.
 */
static void draft_put(const struct draft *d, struct ddp_err *err)
{
    enum { ROOM = sizeof err->text, HEAD = ROOM / 2 };
    size_t head = d->n < ROOM ? d->n : HEAD, from = head;
    if (d->n >= ROOM) {
        from = d->n - (ROOM - HEAD - sizeof "...");
        while (((unsigned char)d->text[head] & 0xc0) == 0x80) /* not within a character */
            head--;
        while (((unsigned char)d->text[from] & 0xc0) == 0x80)
            from++;
    }
    snprintf(err->text, ROOM, "%.*s%s%.*s", (int)head, d->text, from > head ? "..." : "",
             (int)(d->n - from), d->text + from);
}

int err_set(struct ddp_err *err, const char *fmt, ...)
{
    if (err) {
        int saved = errno;
        struct draft d = {.n = 0};
        va_list ap;
        va_start(ap, fmt);
        draft_add(&d, fmt, ap);
        va_end(ap);
        draft_put(&d, err);
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
    struct draft d = {.n = 0};
    draft_add(&d, fmt, ap);
    draft_addf(&d, ": %s%s", error == EAGAIN && limit ? limit : strerror(error),
               error == EMFILE ? "; see 'ulimit -n'" : "");
    draft_put(&d, err);
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
        struct draft d = {.n = 0};
        va_list ap;
        va_start(ap, fmt);
        draft_add(&d, fmt, ap);
        va_end(ap);
        draft_addf(&d, ": %s", err->text);
        draft_put(&d, err);
        errno = saved;
    }
    return -1;
}
