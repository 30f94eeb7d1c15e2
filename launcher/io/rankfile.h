/* launcher/io/rankfile.h - per-rank output files (--output-filename)
 *
 * Files hold exactly what the rank wrote, without tags and times; only a new attempt of
 * all ranks (--max-restarts) is marked by a line, where it has no files of its own. A
 * file and its parent folders are created at its first byte; files of an earlier launch
 * are overwritten.
 */
#ifndef LAUNCHER_IO_RANKFILE_H
#define LAUNCHER_IO_RANKFILE_H

#include "launcher/io/stream.h"
#include "launcher/io/writer.h"

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
void rankfiles_destroy(struct rankfiles *f); /* before rankfiles_open() */

/* Start the writer, which the caller owns and destroys, and the files with it. It reports
 * the first file that cannot be written; that is abandoned, as are later ones, and the
 * others continue. NULL with `err`. */
struct writer *rankfiles_open(struct rankfiles *f, struct loop *loop,
                              const struct writer_events *events, struct ddp_err *err);
const char *rankfiles_failed(const struct rankfiles *f);   /* the path of that file */
void rankfiles_add_ranks(struct rankfiles *f, int nranks); /* up to so many */
/* Go on in the files of the next attempt, of `nranks` ranks; where those of earlier ones
 * are not kept apart, after this line. */
void rankfiles_next_attempt(struct rankfiles *f, int nranks, const char *line);
void rankfiles_write(struct rankfiles *f, int rank, enum out_stream stream,
                     const void *data, size_t size);

#endif
