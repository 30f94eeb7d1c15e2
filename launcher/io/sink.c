/* launcher/io/sink.c - see sink.h
 *
 * A regular file is written through the inherited descriptor: a newly opened one would
 * have its own offset, and `(ddprun ...; echo done) >log` would overwrite
 * itself.
 */
#include "launcher/io/sink.h"

#include "common/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sink {
    const char *name; /* borrowed */
    struct sink_events events;
    struct writer *writer; /* owned */
    bool terminal, midline;
    bool lost; /* writing has failed for good */
};

static void on_drained(void *arg)
{
    struct sink *s = arg;
    s->events.drained(s->events.arg);
}

static void on_failed(int error, void *arg)
{
    struct sink *s = arg;
    char why[160];
    s->lost = true;
    snprintf(why, sizeof why, "cannot write to %s: %s", s->name, strerror(error));
    s->events.lost(error == EPIPE || error == ECONNRESET, why, s->events.arg);
}

char *sink_reserve(struct sink *s, size_t size)
{
    return writer_reserve(s->writer, size);
}

void sink_commit(struct sink *s, size_t size)
{
    if (size == 0)
        return;
    s->midline = writer_reserve(s->writer, size)[size - 1] != '\n';
    if (!s->lost)
        writer_commit(s->writer, size);
}

void sink_put(struct sink *s, const void *data, size_t size)
{
    if (size == 0)
        return;
    memcpy(sink_reserve(s, size), data, size);
    sink_commit(s, size);
}

size_t sink_pending(const struct sink *s)
{
    return writer_pending(s->writer);
}

bool sink_midline(const struct sink *s)
{
    return s->midline;
}

bool sink_terminal(const struct sink *s)
{
    return s->terminal;
}

void sink_prepare(struct sink *s)
{
    writer_prepare(s->writer);
}

bool sink_finish(struct sink *s)
{
    return writer_finish(s->writer);
}

int sink_flush(struct sink *s, int64_t deadline_ms)
{
    return writer_wait(s->writer, deadline_ms) && !s->lost ? 0 : -1;
}

bool sink_redraws(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

struct sink *sink_create(struct loop *loop, int fd, const char *name,
                         const struct sink_events *events, struct ddp_err *err)
{
    struct sink *s = xcalloc(1, sizeof *s);
    s->name = name;
    s->events = *events;
    s->terminal = sink_redraws(fd);
    s->writer = writer_create_fd(loop, fd, false,
                                 &(struct writer_events){on_drained, on_failed, s}, err);
    if (!s->writer) {
        free(s);
        return NULL;
    }
    return s;
}

void sink_destroy(struct sink *s)
{
    if (!s)
        return;
    writer_destroy(s->writer);
    free(s);
}

bool sink_same(int fd, int other_fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstat(other_fd, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}
