/* tests/fuzz/fuzz_file.h - for targets whose decoder takes a file by its name */
#ifndef TESTS_FUZZ_FUZZ_FILE_H
#define TESTS_FUZZ_FUZZ_FILE_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The bytes as a file that has a name; the same descriptor each time. */
static inline const char *file_of(const void *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    /* not writable by others, which some readers refuse */
    if (fd < 0 && ((fd = memfd_create("fuzz", MFD_CLOEXEC)) < 0 || fchmod(fd, 0600) < 0))
        abort();
    if (ftruncate(fd, 0) < 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

#endif
