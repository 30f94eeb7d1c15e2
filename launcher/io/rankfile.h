/* launcher/io/rankfile.h - the bytes of each rank in files of its own (--output-filename)
 *
 * Files hold exactly what the rank wrote: no tags, no times; only a new attempt of all
 * ranks (--max-restarts) is marked. They are made when the first
 * byte comes, with the folders above them; what an earlier launch left is overwritten.
 */
#ifndef LAUNCHER_IO_RANKFILE_H
#define LAUNCHER_IO_RANKFILE_H

#include "include/ddprun/err.h"
#include "launcher/io/output.h"

struct rankfiles;

/* `pattern` without a '%' is a folder: FOLDER/rank.3.out and FOLDER/rank.3.err. Otherwise
 *   %r the rank   %h its host   %s "out" or "err"   %t the start time in seconds   %% '%'
 * and without %s both streams go to one file, in the order of arrival. */
struct rankfiles *rankfiles_create(const char *pattern, int nranks,
                                   const char *(*host_of)(int rank, void *arg), void *arg,
                                   struct ddp_err *err);
/* Is the pattern one, and does it tell the ranks apart? */
int rankfiles_check(const char *pattern, int nranks, struct ddp_err *err);
/* Can every one of the files be made and written, as far as that is known before? Makes
 * nothing. They are written by the launcher, on its machine. */
int rankfiles_check_paths(const struct rankfiles *f, struct ddp_err *err);
void rankfiles_destroy(struct rankfiles *f);

/* Before the first rankfiles_write(): they are written by a thread of their own
 * (writer.h), of which `drained` is called as of a writer. -1 with `err`. */
int rankfiles_open(struct rankfiles *f, struct loop *loop, void (*drained)(void *arg),
                   void *arg, struct ddp_err *err);
/* `line` in each file that has been written. */
void rankfiles_mark(struct rankfiles *f, const char *line);
size_t rankfiles_pending(const struct rankfiles *f); /* bytes that are not written yet */
bool rankfiles_finish(struct rankfiles *f);          /* as writer_finish() */
bool rankfiles_flush(struct rankfiles *f, int64_t deadline_ms); /* as writer_wait() */

/* A file that cannot be written is given up with one line in the log, the first of them
 * only; the others go on. */
void rankfiles_write(struct rankfiles *f, int rank, enum out_stream stream,
                     const void *data, size_t size);

#endif
