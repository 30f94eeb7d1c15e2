/* launcher/io/writer.h - writes in a thread of its own: the loop never waits for a disk
 *
 * Bytes are collected during a turn of the loop and handed over at its end as one chunk.
 * A file system that does not answer, or a reader that does not read, holds up the thread
 * and nothing else. The queue is bounded by its owner: above WRITER_HIGH nothing more
 * should be put until `drained` is called.
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
    /* Write all of a chunk, however long that takes. 0, or an errno, after which further
     * chunks are put all the same: what is to become of them is the target's affair. */
    int (*put)(void *to, const char *data, size_t size);
    void (*release)(void *to); /* no more chunks: free it */
    void *to;
};

struct writer_events {
    /* Fewer than WRITER_LOW bytes wait, after WRITER_HIGH; or none, after
     * writer_finish(). */
    void (*drained)(void *arg);
    void (*failed)(int error, void *arg); /* the first error of `put`, once */
    void *arg;
};

enum { WRITER_LOW = 1 << 20, WRITER_HIGH = 4 << 20 };

/* NULL with `err`; the target then stays the caller's. */
struct writer *writer_create(struct loop *loop, const struct writer_target *target,
                             const struct writer_events *events, struct ddp_err *err);
/* What still waits is lost. A `put` that is under way goes on in its thread, which
 * releases the target when it returns, if ever: the process is about to end. */
void writer_destroy(struct writer *w);

/* Room for `size` bytes behind what has been put, to be filled and then committed. */
char *writer_reserve(struct writer *w, size_t size);
void writer_commit(struct writer *w, size_t size);

size_t writer_pending(const struct writer *w); /* bytes that are not written yet */

/* Is everything written? If not, `drained` is called when it is. Events that are due are
 * called first. */
bool writer_finish(struct writer *w);
/* Wait until everything is written, or until `deadline_ms`. Returns whether it is. */
bool writer_wait(struct writer *w, int64_t deadline_ms);

#endif
