/* common/scoped.h - locals that are released at the end of their block
 *
 *     OWNED char *path = xasprintf("%s/%s", folder, name);
 *     SCOPED(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
 *     SCOPED(strv_finish) struct strv words = {0};
 *
 * On every way out of the block, the last one first, after the value of `return` is
 * computed. Each has a value where it is declared; NULL and -1 are fine. Not for what is
 * returned; what is handed over is set to NULL there.
 *
 * The four functions below keep errno. They are also called for what is not a local:
 * close_fd(&x->fd) closes it if it is open, and sets it to -1.
 */
#ifndef COMMON_SCOPED_H
#define COMMON_SCOPED_H

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* `end` gets the address of the variable. */
#define SCOPED(end) __attribute__((cleanup(end)))
#define OWNED       SCOPED(free_memory)

static inline void free_memory(void *variable)
{
    int error = errno; /* glibc before 2.33 may change it */
    free(*(void **)variable);
    errno = error;
}

static inline void close_fd(int *fd)
{
    int error = errno;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = error;
}

static inline void close_file(FILE **file)
{
    int error = errno;
    if (*file)
        fclose(*file);
    errno = error;
}

static inline void close_folder(DIR **folder)
{
    int error = errno;
    if (*folder)
        closedir(*folder);
    errno = error;
}

#endif
