/* launcher/plugins/diagnose/native.c - see native.h */
#include "launcher/plugins/diagnose/native.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "common/strv.h"
#include "launcher/plugins/diagnose/stacks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
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
    {{"eu-stack", "-s", "-p", "PID", NULL}, stacks_of_native},
    {{"gdb", "-batch", "-nx", "-p", "PID", "-ex", "thread apply all backtrace", NULL},
     stacks_of_native},
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

/* Its output, malloc'ed; NULL: not installed, refused by the kernel, or too slow. */
static char *run(const struct debugger *d, pid_t pid, int64_t until_ms)
{
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return NULL;
    pid_t child = start(d, pid, pipes[1]);
    close(pipes[1]);
    char *text = xcalloc(1, TEXT_MAX + 1);
    ssize_t n = 0, got = 1;
    while (child > 0 && n < TEXT_MAX && got > 0 &&
           sock_await(pipes[0], POLLIN, until_ms) == 0)
        n += (got = read(pipes[0], text + n, (size_t)(TEXT_MAX - n))) > 0 ? got : 0;
    close(pipes[0]);
    if (child > 0 && got != 0)
        kill(child, SIGKILL);
    if (child > 0)
        waitpid(child, NULL, 0);
    return text;
}

void native_stacks(pid_t pid, int64_t until_ms, json_t *process)
{
    json_t *threads = NULL;
    for (size_t i = 0; i < ARRAY_LEN(debuggers) && now_ms() < until_ms; i++) {
        char *text = run(&debuggers[i], pid, until_ms);
        threads = text ? debuggers[i].parse(text) : NULL;
        free(text);
        if (json_array_size(threads) > 0)
            break;
        json_decref(threads);
        threads = NULL;
    }
    if (threads)
        json_object_set_new(process, "threads", threads);
    else
        json_object_set_new(
            process, "no_stacks",
            json_string("no debugger gives its stack (eu-stack, gdb or py-spy)"));
}
