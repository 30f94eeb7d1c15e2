/* launcher/io/output.h - merge the output of all ranks into lines on stdout and stderr
 *
 * Input is pieces of any size, output is whole lines, each with the arrival time of its
 * first byte (if asked for) and its tag: "[3] " or, with more than one host,
 * "[3 node02] ". A partial line is held until it is complete or its stream ends (a
 * newline is then added on the terminal, not in per-rank files). While all ranks together
 * hold more than 256 MiB, long ones are printed as they arrive. On a terminal a carriage
 * return ends a piece as well, so that progress bars move, and a partial line is printed
 * after a short time, so that prompts can be read. stdout and stderr are kept apart. With
 * neither tags nor times, bytes pass through unchanged and at once.
 *
 * Writing never blocks the loop: threads write (writer.h). When our stdout, or a disk
 * with per-rank files, is slow, output_room() goes to zero and the sources must pause
 * (links stop granting credit); nothing is dropped.
 */
#ifndef LAUNCHER_IO_OUTPUT_H
#define LAUNCHER_IO_OUTPUT_H

#include "common/loop.h"
#include "launcher/io/stream.h"
#include "launcher/opts.h"

#include <stddef.h>
#include <stdint.h>

struct output;

/* Before anything is started: check --output-from and --output-filename against the
 * number of ranks, and that the files can be written. 0, or -1 with `err`. */
int output_check(const struct opts *opts, int nranks, const struct output_hosts *hosts,
                 void *arg, struct ddp_err *err);

/* Columns left for a line of a rank behind its tag on the terminal at our stdout; 0: no
 * terminal, or one that cannot redraw a line.
 * `host_width` is the length of the longest host name in tags, 0 without host names. */
int output_columns(const struct opts *opts, int nranks, int host_width);

struct output_events {
    void (*room)(void *arg); /* output_room() is positive again */
    /* The reader of stdout has closed it (EPIPE, as in `| head -1`). */
    void (*reader_left)(void *arg);
    /* Output is lost from here on: of stdout, stderr, or the files of --output-filename
     * when some ranks are not printed (else it is only logged), once for each of these.
     * `why`: "cannot write to stdout: No space left on device". */
    void (*failed)(const char *why, void *arg);
};

/* After output_check(). `hosts` and `events` are borrowed, and called from the loop; both
 * get `arg`. The process ignores SIGPIPE. */
struct output *output_create(struct loop *loop, const struct opts *opts, int nranks,
                             const struct output_hosts *hosts,
                             const struct output_events *events, void *arg,
                             struct ddp_err *err);
void output_feed(struct output *o, int rank, enum out_stream stream, const void *data,
                 size_t size);
/* The stream of this rank has ended. */
void output_end(struct output *o, int rank, enum out_stream stream);

/* A new attempt, of `nranks` ranks: discard the tails, and write `mark` (a line with its
 * newline) to the per-rank files. */
void output_renew(struct output *o, int nranks, const char *mark);
/* The same attempt now has `nranks` ranks, or others are on other hosts. */
void output_add_ranks(struct output *o, int nranks);

size_t output_room(const struct output *o); /* bytes that may be fed now */

/* Print a line of the launcher (without newline) to our stdout or stderr, at a line
 * start, after everything fed so far. */
void output_line(struct output *o, enum out_stream which, const char *line);
void output_prepare(struct output *o); /* for a line to stderr, as writer_prepare() */

/* Does the rank write to a pseudo-terminal? That ends lines with "\r\n", per-rank files
 * get "\n". Our terminal is in raw mode: lines of the launcher end with "\r\n" there. */
void output_of_pty(struct output *o, bool pty);

/* The user has pressed Enter: the terminal's cursor is at a line start. */
void output_typed(struct output *o);

/* The last lines of a rank's stderr (stdout when that is empty), at most 20 lines or
 * 4 KiB; malloc'ed, "" when there are none. */
char *output_tail(const struct output *o, int rank);
/* For --ui and --top: bytes fed in this attempt, and when the last came (now_ms() scale;
 * 0: none). */
struct output_seen {
    uint64_t bytes;
    int64_t last_ms;
};
struct output_seen output_seen(const struct output *o, int rank);
/* The last line of a rank that is not empty, from the stream that was fed last. */
void output_last_line(const struct output *o, int rank, char *line, size_t size);

/* Are those lines already printed to our stderr, followed by fewer than 20 lines of other
 * ranks? Then they need not be repeated. */
bool output_tail_stands(struct output *o, int rank);

/* End all lines; nothing is fed afterwards. Returns whether everything is written, files
 * included; if not, `on_room` is called when it is. */
bool output_finish(struct output *o);
/* Write everything, blocking until `deadline_ms` at most. -1: stdout is closed (EPIPE),
 * or time-out. */
int output_flush(struct output *o, int64_t deadline_ms);
void output_destroy(struct output *o); /* after output_flush() */

#endif
