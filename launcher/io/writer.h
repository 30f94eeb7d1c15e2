/* launcher/io/writer.h - a queue with a writer thread, so that the loop never waits for
 * I/O
 *
 * Bytes are collected during an iteration of the loop and queued at its end as one chunk.
 * A file system that does not answer, or a reader that does not read, blocks the thread
 * only. The owner bounds the queue: above WRITER_HIGH it should put nothing more until
 * `drained` is called.
 *
 * Owner: the creator, in the thread of the loop; all calls and events happen there. Only
 * `put` and `release` run in the writer's thread.
 */
#ifndef LAUNCHER_IO_WRITER_H
#define LAUNCHER_IO_WRITER_H

#include "common/loop.h"
#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct writer;

struct writer_target {
    /* Write all of a chunk; may block. 0, or an errno; later chunks are still put, and
     * the target decides what to do with them. */
    int (*put)(void *to, const char *data, size_t size);
    void (*release)(void *to); /* free `to`; no more chunks follow */
    void *to;
};

struct writer_events {
    /* The queue fell below WRITER_LOW after exceeding WRITER_HIGH, or is empty after
     * writer_finish(). */
    void (*drained)(void *arg);
    void (*failed)(int error, void *arg); /* the first error of `put`, once */
    void *arg;
};

enum { WRITER_LOW = 1 << 20, WRITER_HIGH = 4 << 20 };

/* NULL with `err`; the caller then still owns the target. */
struct writer *writer_create(struct loop *loop, const struct writer_target *target,
                             const struct writer_events *events, struct ddp_err *err);
/* To a descriptor, which is closed at the end if it is `owned`. After the first error
 * nothing more is written to it. */
struct writer *writer_create_fd(struct loop *loop, int fd, bool owned,
                                const struct writer_events *events, struct ddp_err *err);
/* Discards queued bytes. A running `put` continues in its thread, which releases the
 * target when it returns, if ever: the process is about to exit. */
void writer_destroy(struct writer *w);

/* Reserve `size` bytes at the end of the queue, to be filled and then committed. */
char *writer_reserve(struct writer *w, size_t size);
void writer_commit(struct writer *w, size_t size);

/* Starts the thread before there is anything to write, so that the first line is not
 * delayed. */
void writer_prepare(struct writer *w);

size_t writer_pending(const struct writer *w); /* bytes not written yet */

/* Is everything written? If not, `drained` is called when it is. Due callbacks are called
 * first. */
bool writer_finish(struct writer *w);
/* Block until everything is written or `deadline_ms`. Returns whether it is. */
bool writer_wait(struct writer *w, int64_t deadline_ms);

#endif
