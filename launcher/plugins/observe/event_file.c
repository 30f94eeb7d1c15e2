/* launcher/plugins/observe/event_file.c - see event_file.h
 *
 * The file is opened in a thread, too, with a deadline: open() on a dead NFS server does
 * not return.
 */
#include "launcher/plugins/observe/event_file.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/offload.h"
#include "common/output_path.h"
#include "common/write_all.h"
#include "launcher/io/output.h"
#include "launcher/io/path_check.h"
#include "launcher/io/sink.h"
#include "launcher/io/writer.h"
#include "launcher/job/events.h"

#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG_SUBSYS "job"

/* ms: for open(); for what is queued at the end. Bytes queued at most. */
enum { OPEN_MS = 10000, CLOSE_MS = 3000, QUEUED_MAX = 16 << 20 };

struct event_file {
    struct job *j;          /* borrowed */
    const char *where;      /* borrowed */
    struct writer *writer;  /* owned; NULL: our stdout or stderr */
    enum out_stream stream; /* which of them */
    struct evbuffer *early; /* owned: for them, until the job's output is open */
    size_t dropped;         /* events since the last one that was queued */
    bool failed;
};

static void on_drained(void *arg) {}

static void on_failed(int error, void *arg)
{
    struct event_file *f = arg;
    f->failed = true;
    f->j->streams.failed |= error != EPIPE; /* a reader that leaves wants no more */
    log_error("cannot write '%s' (--events): %s; events from here on are lost", f->where,
              strerror(error));
}

struct opening {
    char path[PATH_MAX];
    int fd, error;
};

static void open_path(void *copy)
{
    struct opening *o = copy;
    path_make_folders(o->path);
    o->fd = output_path_fd(o->path, O_APPEND);
    o->error = errno;
}

static int open_file(const char *path, struct ddp_err *err)
{
    OWNED struct opening *what = xcalloc(1, sizeof *what);
    snprintf(what->path, sizeof what->path, "%s", path);
    struct offload *call = offload_begin(open_path, what, sizeof *what, err);
    if (!call)
        return -1;
    const struct opening *done = offload_wait(call, OPEN_MS);
    int fd = done ? done->fd : -1;
    if (!done)
        err_set(err, "--events: opening '%s' takes longer than %d s", path,
                OPEN_MS / 1000);
    else if (fd < 0)
        err_set(err, "--events: cannot write '%s': %s", path,
                output_path_error(done->error));
    offload_end(call);
    return fd;
}

/* The N of "fd:N", which was checked when options were read; -1: it is a path. */
static int descriptor_of(const char *where)
{
    return strcmp(where, "-") == 0         ? STDOUT_FILENO
           : strncmp(where, "fd:", 3) == 0 ? atoi(where + 3)
                                           : -1;
}

int event_file_check(const char *where, struct ddp_err *err)
{
    struct strv paths = {0};
    if (descriptor_of(where) >= 0)
        return 0;
    strv_push(&paths, where);
    return path_check(&paths, "--events", where, err);
}

/* -1: `err` is set. */
static int open_where(const char *where, struct ddp_err *err)
{
    int given = descriptor_of(where);
    if (given < 0)
        return open_file(where, err);
    int fd = fcntl(given, F_DUPFD_CLOEXEC, 3);
    return fd < 0 ? err_errno(err, "--events") : fd;
}

struct event_file *event_file_open(struct job *j, const char *where, struct ddp_err *err)
{
    struct event_file *f = xcalloc(1, sizeof *f);
    *f = (struct event_file){.j = j, .where = where};
    int fd = open_where(where, err);
    if (fd < 0) {
        free(f);
        return NULL;
    }
    /* a second writer would cut lines of the first */
    bool out = sink_same(fd, STDOUT_FILENO);
    if (out || sink_same(fd, STDERR_FILENO)) {
        f->stream = out ? OUT_STDOUT : OUT_STDERR;
        f->early = evbuffer_new();
        close(fd);
        return f;
    }
    f->writer = writer_create_fd(j->loop, fd, true,
                                 &(struct writer_events){on_drained, on_failed, f}, err);
    if (f->writer)
        return f;
    close(fd);
    free(f);
    return NULL;
}

/* Events that came before the job's output was open, then this one. */
static void put_output(struct event_file *f, const char *line, size_t size)
{
    struct output *o = f->j->output;
    evbuffer_add(f->early, line, size);
    if (o) {
        OWNED char *all = xstrndup((const char *)evbuffer_pullup(f->early, -1),
                                   evbuffer_get_length(f->early) - 1);
        output_line(o, f->stream, all);
        evbuffer_drain(f->early, SIZE_MAX);
    }
}

void event_file_put(const char *line, size_t size, void *file)
{
    struct event_file *f = file;
    if (f->failed) {
        /* reported */
    } else if (!f->writer) {
        put_output(f, line, size);
    } else if (writer_pending(f->writer) > QUEUED_MAX) {
        f->dropped++;
    } else {
        size_t n = f->dropped;
        f->dropped = 0; /* before the next call of this function */
        if (n > 0)
            event_emit(f->j, "dropped", "{s:I}", "events", (json_int_t)n);
        memcpy(writer_reserve(f->writer, size), line, size);
        writer_commit(f->writer, size);
    }
}

void event_file_close(struct event_file *f)
{
    if (!f)
        return;
    events_unsubscribe(f->j, f);
    bool all = !f->writer || writer_wait(f->writer, now_ms() + CLOSE_MS);
    if ((!all || f->dropped > 0) && !f->failed) {
        f->j->streams.failed = true;
        log_error("'%s' (--events) is incomplete: writing it takes too long", f->where);
    } else if (f->early &&
               evbuffer_get_length(f->early) > 0) /* the job did not get far */
        write_all(f->stream == OUT_STDERR ? STDERR_FILENO : STDOUT_FILENO,
                  evbuffer_pullup(f->early, -1), evbuffer_get_length(f->early));
    if (f->early)
        evbuffer_free(f->early);
    writer_destroy(f->writer);
    free(f);
}
