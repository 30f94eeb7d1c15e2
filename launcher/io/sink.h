/* launcher/io/sink.h - stdout or stderr, and what is on its last line
 *
 * Our stdout may be a file, a pipe, a socket or a terminal, and is shared with the shell
 * that started us. O_NONBLOCK belongs to the open file description, not to the
 * descriptor: setting it would break the other processes of the pipeline, and it has no
 * effect on regular files. So each sink has a thread that writes (writer.h).
 */
#ifndef LAUNCHER_IO_SINK_H
#define LAUNCHER_IO_SINK_H

#include "launcher/io/writer.h"

struct output;

struct sink {
    struct output *output; /* borrowed: owner */
    const char *name;      /* "stdout", for messages */
    struct writer *writer; /* borrowed: the output's */
    bool terminal;         /* understands escape sequences */
    bool midline;          /* the last byte queued is no newline */
    bool lost;             /* writing has failed for good: bytes are discarded */
    bool drawn;            /* its last line ended in '\r': erase it before the next one */
    int open;       /* the stream with the partial line, rank * 2 + stream + 1; 0: none */
    uint64_t lines; /* completed lines */
};

/* Its last line is a new one, or is given up. */
static inline void sink_at_start(struct sink *s)
{
    s->drawn = false;
    s->open = 0;
}

/* Queue the next `size` bytes of writer_reserve(), or these. */
void sink_commit(struct sink *s, size_t size);
void sink_put(struct sink *s, const void *data, size_t size);

/* Is `fd` a terminal that understands escape sequences? */
bool sink_redraws(int fd);

/* Do both descriptors refer to the same file, pipe or terminal? */
bool sink_same(int fd, int other_fd);

#endif
