/* launcher/plugins/diagnose/native.c - see native.h
 *
 * As many debuggers run at a time as the machine has CPUs. eu-stack looks for separate
 * debug information only beside the file: that in /usr/lib/debug is of the system's
 * libraries and says nothing of the user's code, and to unpack libc's takes three
 * quarters of its CPU time, in each process again.
 */
#include "launcher/plugins/diagnose/native.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/strv.h"
#include "launcher/plugins/diagnose/stacks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 20 };

/* In order of preference. PID is replaced. */
static const struct debugger {
    const char *argv[12];
    json_t *(*parse)(const char *text);
} debuggers[] = {
    {{"py-spy", "dump", "--nonblocking", "--pid", "PID", NULL}, stacks_of_python},
    {{"eu-stack", "--debuginfo-path=:.debug", "-m", "-s", "-p", "PID", NULL},
     stacks_of_native},
    {{"gdb", "-batch", "-nx", "-p", "PID", "-ex", "thread apply all backtrace", NULL},
     stacks_of_native},
};

/* One debugger at a time, of one process after the other. */
struct reader {
    const struct native_process *of; /* NULL: idle */
    size_t debugger;                 /* index of the one that runs */
    pid_t child;
    char *text; /* its output so far, owned, TEXT_MAX + 1 bytes */
    size_t size;
};

static pid_t start(const struct debugger *d, pid_t pid, int out)
{
    struct strv argv = {0};
    for (size_t i = 0; d->argv[i]; i++) {
        if (strcmp(d->argv[i], "PID") == 0)
            strv_pushf(&argv, "%d", (int)pid);
        else
            strv_push(&argv, d->argv[i]);
    }
    pid_t child = fork();
    if (child != 0)
        strv_finish(&argv);
    if (child != 0)
        return child;
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(out, 1);
    dup2(null, 2);
    unsetenv("DEBUGINFOD_URLS"); /* it would fetch debug information from the network */
    execvp(argv.v[0], argv.v);
    _exit(127);
}

/* *fd: where to read its output. False: there is no debugger left to try. */
static bool begin(struct reader *r, int *fd)
{
    int pipes[2];
    if (r->debugger == ARRAY_LEN(debuggers) || pipe2(pipes, O_CLOEXEC) < 0)
        return false;
    r->child = start(&debuggers[r->debugger], r->of->pid, pipes[1]);
    close(pipes[1]);
    *fd = pipes[0];
    r->size = 0;
    if (r->child < 0) {
        close(*fd);
        *fd = -1;
    }
    return r->child > 0;
}

static void end(struct reader *r, int *fd)
{
    close(*fd);
    *fd = -1;
    kill(r->child, SIGKILL); /* if it has not ended */
    waitpid(r->child, NULL, 0);
}

/* Read some output; at its end parse it, and try the next debugger if it has no stacks.
 */
static void proceed(struct reader *r, int *fd)
{
    ssize_t n = read(*fd, r->text + r->size, TEXT_MAX - r->size);
    if (n > 0) {
        r->size += (size_t)n;
        return;
    }
    end(r, fd);
    r->text[r->size] = '\0';
    json_t *threads = debuggers[r->debugger++].parse(r->text);
    bool found = json_array_size(threads) > 0;
    if (found)
        json_object_set(r->of->out, "threads", threads);
    json_decref(threads);
    if (found || !begin(r, fd))
        r->of = NULL;
}

/* Give work to idle readers. Returns how many are busy. */
static size_t fill(struct reader *readers, struct pollfd *fds, size_t nreaders,
                   const struct native_process *list, size_t n, size_t *next)
{
    size_t busy = 0;
    for (size_t i = 0; i < nreaders; i++) {
        struct reader *r = &readers[i];
        while (!r->of && *next < n) {
            r->of = &list[(*next)++];
            r->debugger = 0;
            if (!begin(r, &fds[i].fd))
                r->of = NULL;
        }
        busy += r->of != NULL;
    }
    return busy;
}

void native_stacks(const struct native_process *list, size_t n, int64_t until_ms)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    size_t nreaders = cpus > 0 && (size_t)cpus < n ? (size_t)cpus : n, next = 0;
    struct reader *readers = xcalloc(nreaders + 1, sizeof *readers);
    struct pollfd *fds = xcalloc(nreaders + 1, sizeof *fds);
    for (size_t i = 0; i < nreaders; i++) {
        readers[i].text = xcalloc(1, TEXT_MAX + 1);
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
        if (readers[i].of)
            end(&readers[i], &fds[i].fd);
        free(readers[i].text);
    }
    for (size_t i = 0; i < n; i++) {
        if (!json_object_get(list[i].out, "threads"))
            json_object_set_new(
                list[i].out, "no_stacks",
                json_string("no debugger gives its stack (eu-stack, gdb or py-spy)"));
    }
    free(fds);
    free(readers);
}
