/* common/stdout.c - see stdout.h */
#include "common/stdout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *whose;

void stdout_reserve(int out)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", fd == STDOUT_FILENO ? out : O_RDWR);
    }
}

static void at_the_end(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return;
    /* The reason of a write that failed before is lost: another write gets it. */
    bool known = errno != 0 || write(STDOUT_FILENO, "\n", 1) < 0;
    fprintf(stderr, "%s: cannot write to stdout: %s\n", whose,
            known ? strerror(errno) : "it did not take everything");
    _exit(EXIT_FAILURE);
}

void stdout_must_arrive(const char *program)
{
    stdout_reserve(O_RDWR);
    whose = program;
    if (atexit(at_the_end) != 0)
        abort(); /* as mem.h does when memory is gone */
}
