/* launcher/io/output.h - from the bytes of many ranks to lines on our stdout and stderr
 *
 * Bytes come in pieces of any size; what goes out is whole lines, each with its tag at
 * its true start: "[3] " or, with more than one host, "[3 node02] ", and the time its
 * first byte came before it. A partial line is held until its end comes, or until its
 * stream ends (a newline is then added on the terminal, not in per-rank files). One of
 * more than 256 MiB is printed as it comes. On a terminal a carriage return ends a piece as well,
 * so that progress bars move, and a partial line is shown after a moment, so that
 * questions can be read. stdout and stderr are kept apart. With neither tags nor
 * times, bytes pass through untouched and at once.
 *
 * Writing never blocks the loop: threads write (writer.h). When our stdout, or a disk with
 * per-rank files, is slow, output_room() goes to zero and the sources are to wait (links
 * stop giving credit); nothing is dropped.
 */
#ifndef LAUNCHER_IO_OUTPUT_H
#define LAUNCHER_IO_OUTPUT_H

#include "common/loop.h"
#include "launcher/opts.h"

#include <stddef.h>
#include <stdint.h>

struct output;
enum out_stream { OUT_STDOUT, OUT_STDERR };

/* Do the options make sense for so many ranks (--output-from, --output-filename)? To be
 * asked before anything is started. 0, or -1 with `err`. */
int output_check(const struct opts *opts, int nranks, struct ddp_err *err);
/* And can the files of --output-filename be written? `host_of` as for output_create(). */
int output_check_files(const struct opts *opts, int nranks,
                       const char *(*host_of)(int rank, void *arg), void *arg,
                       struct ddp_err *err);

/* How long a line of a rank may be on the terminal behind our stdout, so that it stays
 * one line under its tag; 0: there is no terminal, or one that cannot redraw a line.
 * `host_width` is the length of the longest host name in tags, 0 without host names. */
int output_columns(const struct opts *opts, int nranks, int host_width);

/* Fails as output_check() does. `host_of` names the host of a rank for tags when there is
 * more than one host, else NULL. `on_room` is called when room has come back after
 * output_room() was 0. */
struct output *output_create(struct loop *loop, const struct opts *opts, int nranks,
                             const char *(*host_of)(int rank, void *arg),
                             void (*on_room)(void *arg), void *arg, struct ddp_err *err);
void output_feed(struct output *o, int rank, enum out_stream stream, const void *data,
                 size_t size);
/* The stream of this rank has ended. */
void output_end(struct output *o, int rank, enum out_stream stream);

/* All ranks begin anew: their last lines are of the past, and in files of theirs `mark`
 * (a line, with its newline) stands before what is to come. */
void output_renew(struct output *o, const char *mark);

size_t output_room(const struct output *o); /* bytes that may be fed now */

/* A line of the launcher's own, without its newline, for our stderr: it comes at a true
 * line start, behind everything that has been fed before. */
void output_say(struct output *o, const char *line);

/* The user has pressed Enter: a terminal's cursor is at a line start, whatever we wrote.
 */
void output_typed(struct output *o);

/* Tell once per stream of ours that it takes nothing more: its reader has left (EPIPE, as
 * in `| head -1`) or writing failed (`why`: "cannot write to stdout: No space left on
 * device"). What is fed for it from then on is discarded. Called from the loop. The
 * process ignores SIGPIPE. */
void output_on_lost(struct output *o,
                    void (*lost)(enum out_stream stream, bool reader_left,
                                 const char *why, void *arg),
                    void *arg);

/* The last lines of a rank's stderr (stdout when that is empty), at most 20 lines or
 * 4 KiB; malloc'ed, "" when there are none. */
char *output_tail(const struct output *o, int rank);
/* Do they stand where our own lines go, with fewer than 20 of other ranks behind them?
 * Then nobody needs them twice. */
bool output_tail_stands(struct output *o, int rank);

/* Nothing more is fed: ends all lines. Is everything written, to files as well? If not,
 * `on_room` is called when it is. */
bool output_finish(struct output *o);
/* Write out everything, waiting if it must be (blocking, bounded by `deadline_ms`).
 * Returns -1 when our stdout is gone (EPIPE) or time ran out. */
int output_flush(struct output *o, int64_t deadline_ms);
void output_destroy(struct output *o); /* after output_flush() */

#endif
