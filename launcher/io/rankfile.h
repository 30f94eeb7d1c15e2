/* launcher/io/rankfile.h - per-rank output files (--output-filename)
 *
 * Files hold exactly what the rank wrote, without tags and times; only a new attempt of
 * all ranks (--max-restarts) is marked by a line, where it has no files of its own. A
 * file and its parent folders are created at its first byte; files of an earlier launch
 * are overwritten.
 */
#ifndef LAUNCHER_IO_RANKFILE_H
#define LAUNCHER_IO_RANKFILE_H

#include "common/loop.h"
#include "include/ddprun/err.h"
#include "launcher/io/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rankfiles;

/* A `pattern` without '%' is a folder: FOLDER/rank.3.out and FOLDER/rank.3.err, or if
 * all ranks may be started `again`, FOLDER/attempt-1/rank.3.out and a link
 * FOLDER/current. Otherwise
 *   %r the rank   %h its host   %s "out" or "err"   %t the start time in seconds
 *   %a the attempt, from 1   %% '%'
 * and without %s both streams go to one file, in the order of arrival. NULL with `err`:
 * the pattern is invalid, or does not give each rank its own file. */
struct rankfiles *rankfiles_create(const char *pattern, int nranks, bool again,
                                   const char *(*host_of)(int rank, void *arg), void *arg,
                                   struct ddp_err *err);
/* Can all the files be created and written, as far as can be checked in advance? Creates
 * nothing. The launcher writes them, on its machine. A file system that does not answer
 * in 5 s is warned of. */
int rankfiles_check_paths(const struct rankfiles *f, struct ddp_err *err);
void rankfiles_destroy(struct rankfiles *f);

struct rankfiles_events {
    void (*drained)(void *arg); /* as in writer.h */
    /* The first file that cannot be written, with errno. It is abandoned, as are later
     * ones; the others continue. */
    void (*failed)(const char *path, int error, void *arg);
    void *arg;
};

/* Start the writer thread (writer.h), before the first rankfiles_write(). -1 with `err`.
 */
int rankfiles_open(struct rankfiles *f, struct loop *loop,
                   const struct rankfiles_events *events, struct ddp_err *err);
void rankfiles_add_ranks(struct rankfiles *f, int nranks); /* up to so many */
/* Go on in the files of the next attempt, of `nranks` ranks; where those of earlier ones
 * are not kept apart, after this line. */
void rankfiles_next_attempt(struct rankfiles *f, int nranks, const char *line);
size_t rankfiles_pending(const struct rankfiles *f); /* bytes not written yet */
bool rankfiles_finish(struct rankfiles *f);          /* as writer_finish() */
bool rankfiles_flush(struct rankfiles *f, int64_t deadline_ms); /* as writer_wait() */

void rankfiles_write(struct rankfiles *f, int rank, enum out_stream stream,
                     const void *data, size_t size);

#endif
