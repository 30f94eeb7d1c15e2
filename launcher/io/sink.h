/* launcher/io/sink.h - a descriptor of ours that takes bytes without ever blocking the loop
 *
 * Our stdout may be a file, a pipe, a socket or a terminal, and is shared with the shell
 * that started us. O_NONBLOCK belongs to the open file, not to the descriptor, so setting
 * it would make the shell and everybody else in the pipeline stumble, and regular files
 * know no such thing. So each sink is written by a thread of its own (writer.h).
 */
#ifndef LAUNCHER_IO_SINK_H
#define LAUNCHER_IO_SINK_H

#include "launcher/io/writer.h"

struct sink;

struct sink_events {
    void (*drained)(void *arg); /* as of a writer */
    /* Nothing can be written any more; what waits and what comes is discarded. Once. */
    void (*lost)(bool reader_left, const char *why, void *arg);
    void *arg;
};

/* `fd` is borrowed and left as it is; `name` ("stdout") is borrowed for messages. NULL
 * with `err`. */
struct sink *sink_create(struct loop *loop, int fd, const char *name,
                         const struct sink_events *events, struct ddp_err *err);
void sink_destroy(struct sink *s); /* what still waits is gone */

/* Room for `size` bytes at the end of the queue, to be filled and then committed. */
char *sink_reserve(struct sink *s, size_t size);
void sink_commit(struct sink *s, size_t size);
void sink_put(struct sink *s, const void *data, size_t size);

size_t sink_pending(const struct sink *s); /* bytes that are not written yet */
bool sink_midline(const struct sink *s);   /* the last byte that was put is no newline */
bool sink_terminal(const struct sink *s);  /* one that understands escape sequences */

/* Does it lead to a terminal that understands escape sequences? */
bool sink_redraws(int fd);

/* Do both descriptors lead to the same file, pipe or terminal? */
bool sink_same(int fd, int other_fd);

bool sink_finish(struct sink *s); /* as writer_finish() */
/* Write all, waiting until `deadline_ms` (now_ms() scale). -1: lost, or out of time. */
int sink_flush(struct sink *s, int64_t deadline_ms);

#endif
