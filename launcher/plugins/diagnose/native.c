/* launcher/plugins/diagnose/native.c - see native.h
 *
 * Many debuggers run at a time: MPI ranks that wait use all CPU time, and one that is
 * being read is stopped, so that the CPUs are soon free for the debuggers. gdb is large,
 * and runs as often as the machine has CPUs, also after an eu-stack that fails. eu-stack
 * looks for separate debug information only beside the file: that in /usr/lib/debug is of
 * the system's libraries and says nothing of the user's code, and to unpack libc's takes
 * three quarters of its CPU time, in each process again.
 */
#include "launcher/plugins/diagnose/native.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/strv.h"
#include "launcher/plugins/diagnose/stacks.h"
#include "launcher/transport/program.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* A rank may have hundreds of threads; gdb prints a line of its own for each frame. */
enum { TEXT_FIRST = 64 << 10, TEXT_MAX = 8 << 20, READERS_LEAST = 32 };

/* In order of preference. PID is replaced. */
static const struct debugger {
    const char *argv[12];
    json_t *(*parse)(const char *text);
    bool python; /* only for interpreters of Python */
    bool large;  /* as many at a time as the machine has CPUs */
} debuggers[] = {
    {{"py-spy", "dump", "--nonblocking", "--json", "--pid", "PID"},
     stacks_of_pyspy,
     .python = true},
    {{"eu-stack", "--debuginfo-path=:.debug", "-m", "-s", "-p", "PID"}, stacks_of_native},
    {{"gdb", "-batch", "-nx", "-p", "PID", "-ex", "thread apply all backtrace"},
     stacks_of_native,
     .large = true},
};

/* One debugger at a time, of one process after the other. */
struct reader {
    char *const *paths; /* borrowed: of the debuggers, NULL where one is not installed */
    long *large_left;   /* borrowed, of all readers: large debuggers that may start now */
    const struct described *of; /* NULL: idle */
    size_t debugger;            /* index of the one that runs, or waits until it may */
    pid_t child;
    char *text; /* its output so far, owned */
    size_t size, room;
};

static bool runs_python(pid_t pid)
{
    char path[PATH_MAX];
    return proc_link(pid, "exe", path, sizeof path) && program_is_python(path);
}

static pid_t start(const struct debugger *d, const char *path, pid_t pid, int out)
{
    SCOPED(strv_finish) struct strv argv = {0};
    enum child_step step;
    for (size_t i = 0; d->argv[i]; i++) {
        if (strcmp(d->argv[i], "PID") == 0)
            strv_pushf(&argv, "%d", (int)pid);
        else
            strv_push(&argv, d->argv[i]);
    }
    struct child_spec spec = {
        .path = path, .argv = argv.v, .env = environ, .in = -1, .out = out, .err = -1};
    return child_spawn(&spec, &step);
}

/* Of the debuggers from r->debugger on, start the first that is of use. *fd: where to
 * read its output; -1: it may not run yet. False: there is none left. */
static bool begin(struct reader *r, int *fd)
{
    for (; r->debugger < ARRAY_LEN(debuggers); r->debugger++) {
        const struct debugger *d = &debuggers[r->debugger];
        const char *path = r->paths[r->debugger];
        int ends[2];
        if (!path || (d->python && !runs_python(r->of->pid)))
            continue;
        if (d->large && *r->large_left == 0)
            return true;
        if (pipe2(ends, O_CLOEXEC) < 0)
            continue;
        r->child = start(d, path, r->of->pid, ends[1]);
        close(ends[1]);
        r->size = 0;
        if (r->child > 0) {
            *fd = ends[0];
            *r->large_left -= d->large;
            return true;
        }
        close(ends[0]);
    }
    return false;
}

static void end(struct reader *r, int *fd)
{
    close(*fd);
    *fd = -1;
    kill(r->child, SIGKILL); /* if it has not ended */
    waitpid(r->child, NULL, 0);
    *r->large_left += debuggers[r->debugger].large;
}

/* Read some output; at its end parse it, and try the next debugger if it has no stacks.
 */
static void proceed(struct reader *r, int *fd)
{
    if (r->size + 1 >= r->room && r->room < TEXT_MAX)
        r->text = xrealloc(r->text, r->room = r->room ? r->room * 2 : TEXT_FIRST, 1);
    ssize_t n = read(*fd, r->text + r->size, r->room - 1 - r->size);
    if (n > 0) {
        r->size += (size_t)n;
        return;
    }
    end(r, fd);
    r->text[r->size] = '\0';
    json_auto_t *threads = debuggers[r->debugger++].parse(r->text);
    bool found = json_array_size(threads) > 0;
    if (found)
        json_object_set(r->of->out, "threads", threads);
    if (found || !begin(r, fd))
        r->of = NULL;
}

/* Start what may run. Returns how many readers are busy. */
static size_t fill(struct reader *readers, struct pollfd *fds, size_t nreaders,
                   const struct described *list, size_t n, size_t *next)
{
    size_t busy = 0;
    for (size_t i = 0; i < nreaders; i++) {
        struct reader *r = &readers[i];
        while (fds[i].fd < 0 && (r->of || *next < n)) {
            if (!r->of) {
                r->of = &list[(*next)++];
                r->debugger = 0;
            }
            if (begin(r, &fds[i].fd))
                break;
            r->of = NULL;
        }
        busy += r->of != NULL;
    }
    return busy;
}

static void read_all(char *const *paths, const struct described *list, size_t n,
                     int64_t until_ms)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    long large_left = cpus > 0 ? cpus : 1;
    size_t nreaders = cpus > READERS_LEAST ? (size_t)cpus : READERS_LEAST, next = 0;
    nreaders = nreaders < n ? nreaders : n;
    OWNED struct reader *readers = xcalloc(nreaders + 1, sizeof *readers);
    OWNED struct pollfd *fds = xcalloc(nreaders + 1, sizeof *fds);
    for (size_t i = 0; i < nreaders; i++) {
        readers[i] = (struct reader){.paths = paths, .large_left = &large_left};
        fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    }
    int64_t left;
    while (fill(readers, fds, nreaders, list, n, &next) > 0 &&
           (left = until_ms - now_ms()) > 0) {
        poll(fds, nreaders, (int)left);
        for (size_t i = 0; i < nreaders; i++) {
            if (fds[i].fd >= 0 && fds[i].revents)
                proceed(&readers[i], &fds[i].fd);
        }
    }
    for (size_t i = 0; i < nreaders; i++) {
        if (fds[i].fd >= 0)
            end(&readers[i], &fds[i].fd);
        free(readers[i].text);
    }
}

void native_stacks(const struct described *list, size_t n, int64_t until_ms)
{
    char *paths[ARRAY_LEN(debuggers)] = {0};
    struct ddp_err err;
    int code;
    for (size_t i = 0; n > 0 && i < ARRAY_LEN(debuggers); i++)
        paths[i] =
            program_find(debuggers[i].argv[0], ".", getenv("PATH"), NULL, &code, &err);
    unsetenv("DEBUGINFOD_URLS"); /* they would fetch debug information from the network */
    if (n > 0 && child_init(&err) == 0)
        read_all(paths, list, n, until_ms);
    child_finish();
    for (size_t i = 0; i < n; i++) {
        if (!json_object_get(list[i].out, "threads"))
            json_object_set_new(
                list[i].out, "no_stacks",
                json_string("no debugger gives its stack (eu-stack, gdb or py-spy)"));
    }
    for (size_t i = 0; i < ARRAY_LEN(debuggers); i++)
        free(paths[i]);
}
