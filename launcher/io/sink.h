/* launcher/io/sink.h - queued writing to stdout or stderr; never blocks the loop
 *
 * Our stdout may be a file, a pipe, a socket or a terminal, and is shared with the shell
 * that started us. O_NONBLOCK belongs to the open file description, not to the descriptor:
 * setting it would break the other processes of the pipeline, and it has no effect on
 * regular files. So each sink has a thread that writes (writer.h).
 */
#ifndef LAUNCHER_IO_SINK_H
#define LAUNCHER_IO_SINK_H

#include "launcher/io/writer.h"

struct sink;

struct sink_events {
    void (*drained)(void *arg); /* as in writer.h */
    /* Writing has failed for good; queued and later bytes are discarded. Called once. */
    void (*lost)(bool reader_left, const char *why, void *arg);
    void *arg;
};

/* `fd` is borrowed and its flags are not changed; `name` ("stdout", for messages) is
 * borrowed. NULL with `err`. */
struct sink *sink_create(struct loop *loop, int fd, const char *name,
                         const struct sink_events *events, struct ddp_err *err);
void sink_destroy(struct sink *s); /* discards queued bytes */

/* Reserve `size` bytes at the end of the queue, to be filled and then committed. */
char *sink_reserve(struct sink *s, size_t size);
void sink_commit(struct sink *s, size_t size);
void sink_put(struct sink *s, const void *data, size_t size);

size_t sink_pending(const struct sink *s); /* bytes not written yet */
bool sink_midline(const struct sink *s);   /* the last byte queued is no newline */
bool sink_terminal(const struct sink *s);  /* a terminal with escape sequences */

/* Is `fd` a terminal that understands escape sequences? */
bool sink_redraws(int fd);

/* Do both descriptors refer to the same file, pipe or terminal? */
bool sink_same(int fd, int other_fd);

void sink_prepare(struct sink *s); /* as writer_prepare() */
bool sink_finish(struct sink *s);  /* as writer_finish() */
/* Write all, blocking until `deadline_ms` (now_ms() scale). -1: lost, or time-out. */
int sink_flush(struct sink *s, int64_t deadline_ms);

#endif
