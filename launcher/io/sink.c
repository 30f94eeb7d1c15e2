/* launcher/io/sink.c - see sink.h */
#include "launcher/io/sink.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    memcpy(writer_reserve(s->writer, size), data, size);
    sink_commit(s, size);
}

bool sink_redraws(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

bool sink_same(int fd, int other_fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstat(other_fd, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}
