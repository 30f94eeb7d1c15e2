/* launcher/job/events.c - see events.h */
#include "launcher/job/events.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/utf8.h"
#include "launcher/job/state.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utlist.h>

struct subscriber {
    event_fn fn;
    void *arg;
    struct subscriber *next;
};

void events_subscribe(struct job *j, event_fn fn, void *arg)
{
    struct subscriber *s = xcalloc(1, sizeof *s);
    *s = (struct subscriber){.fn = fn, .arg = arg};
    LL_APPEND(j->subscribers, s);
}

void events_unsubscribe(struct job *j, const void *arg)
{
    struct subscriber *s, *next;
    LL_FOREACH_SAFE(j->subscribers, s, next)
    {
        if (!arg || s->arg == arg) {
            LL_DELETE(j->subscribers, s);
            free(s);
        }
    }
}

bool events_wanted(const struct job *j)
{
    return j->subscribers != NULL;
}

json_t *event_text(const char *text)
{
    if (!text)
        return json_null();
    json_t *whole = json_string(text);
    if (whole)
        return whole;
    OWNED char *clean = xcalloc(strlen(text) + 1, 3);
    char *to = clean;
    for (const char *p = text; *p;) {
        size_t n = utf8_length(p);
        to = n ? mempcpy(to, p, n) : stpcpy(to, "\xef\xbf\xbd");
        p += n ? n : 1;
    }
    return json_string(clean);
}

/* "2026-11-21T05:44:26.123Z" */
static void name_time(char *text, size_t size)
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(text, size, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, size - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

void events_put(struct job *j, const char *name, const char *fmt, ...)
{
    va_list args;
    json_error_t why;
    char when[40];
    va_start(args, fmt);
    json_auto_t *fields = json_vpack_ex(&why, 0, fmt, args);
    va_end(args);
    assert(fields); /* a mistake in `fmt` */
    name_time(when, sizeof when);
    json_auto_t *event =
        json_pack("{s:i, s:s, s:s, s:f, s:s, s:i}", "v", EVENTS_VERSION, "event", name,
                  "time", when, "t", (double)(now_ns() - j->created_ns) / 1e9, "job",
                  j->job.id, "attempt", j->restart.attempt + 1);
    json_object_update(event, fields);
    OWNED char *line = json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(9));
    size_t size = strlen(line);
    line[size++] = '\n'; /* in place of the zero */
    struct subscriber *s, *next;
    LL_FOREACH_SAFE(j->subscribers, s, next)
    s->fn(line, size, s->arg);
}
