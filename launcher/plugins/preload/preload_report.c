/* launcher/plugins/preload/preload_report.c - see preload_report.h */
#include "launcher/plugins/preload/preload_report.h"

#include "common/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ms: delay of the second measurement; upper limit of the interval, which doubles */
enum { FIRST_INTERVAL_MS = 1000, INTERVAL_MAX_MS = 60000 };

struct preload_report {
    struct event *timer; /* owned */
    int64_t interval_ms;
    struct preload_report_events events;
    void *arg;
    struct msg_savings saved; /* as last reported */
};

static int read_kib(const char *text, const char *name, long *kib)
{
    const char *at = strstr(text, name);
    return at && sscanf(at + strlen(name), "%ld kB", kib) == 1 ? 0 : -1;
}

int preload_report_read(const char *text, long *anonymous, long *fair)
{
    return read_kib(text, "\nAnonymous:", anonymous) == 0 &&
                   read_kib(text, "\nPss_Anon:", fair) == 0
               ? 0
               : -1;
}

static int read_memory(pid_t pid, long *anonymous, long *fair)
{
    char path[40], text[2048];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return preload_report_read(text, anonymous, fair);
}

/* KiB saved; -1: a rank has exited, or its memory cannot be read. */
static long measure(struct preload_report *s)
{
    long anonymous, fair, saved = 0;
    pid_t pid;
    for (size_t i = 0; (pid = s->events.rank(i, s->arg)) >= 0; i++) {
        if (pid == 0 || read_memory(pid, &anonymous, &fair) < 0)
            return -1;
        saved += anonymous - fair;
    }
    pid = s->events.helper(s->arg);
    if (pid > 0 && read_memory(pid, &anonymous, &fair) == 0)
        saved -= fair;
    return saved > 0 ? saved : 0;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct preload_report *s = arg;
    long kib = measure(s);
    if (kib < 0)
        return;
    s->saved.kib = (uint64_t)kib;
    s->events.report(&s->saved, s->arg);
    event_add(s->timer,
              &(struct timeval){s->interval_ms / 1000, s->interval_ms % 1000 * 1000});
    s->interval_ms =
        s->interval_ms * 2 < INTERVAL_MAX_MS ? s->interval_ms * 2 : INTERVAL_MAX_MS;
}

void preload_report_forked(struct preload_report *s)
{
    s->saved.forks++;
}

void preload_report_all(struct preload_report *s)
{
    s->interval_ms = FIRST_INTERVAL_MS;
    on_timer(-1, 0, s);
    s->events.report(&s->saved, s->arg); /* reports the forks even if measuring failed */
}

struct preload_report *preload_report_create(struct loop *loop, int64_t import_ms,
                                             const struct preload_report_events *events,
                                             void *arg)
{
    struct preload_report *s = xcalloc(1, sizeof *s);
    *s = (struct preload_report){
        .events = *events, .arg = arg, .saved.import_ms = (uint32_t)import_ms};
    s->timer = evtimer_new(loop_base(loop), on_timer, s);
    if (!s->timer)
        abort();
    return s;
}

void preload_report_destroy(struct preload_report *s)
{
    if (!s)
        return;
    event_free(s->timer);
    free(s);
}
