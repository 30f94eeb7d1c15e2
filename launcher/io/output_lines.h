/* launcher/io/output_lines.h - from the bytes of a rank to lines on a sink
 *
 * Also the state of the output, which output.c creates.
 */
#ifndef LAUNCHER_IO_OUTPUT_LINES_H
#define LAUNCHER_IO_OUTPUT_LINES_H

#include "common/tail.h"
#include "launcher/io/sink.h"
#include "launcher/io/stream.h"
#include "launcher/opts.h"

#include <time.h>

#define CLEAR_LINE "\033[K"

struct stream {
    char *partial; /* owned: the incomplete line */
    size_t npartial, room;
    int64_t since_ms; /* when the first byte of `partial` arrived (wall clock) */
    struct tail tail;
    bool cr;           /* for its file: the '\r' at the end of the last piece */
    uint64_t shown_at; /* sink.lines when its last line was printed */
};

struct rank {
    bool silent; /* excluded by --output-from */
    size_t ntag;
    char *tag; /* owned: "[3 node02] ", "" without tags; NULL until it is needed */
    struct stream streams[2];
};

struct output {
    const struct opts *opts; /* borrowed */
    struct sink sinks[2];    /* the second is not used if both streams go to the first */
    struct sink *to[2];      /* by stream: one of these */
    struct writer *writers[3]; /* owned: of the sinks and of the files */
    size_t nwriters;
    struct event *prompt; /* owned: prints partial lines; NULL without a terminal */
    bool raw;             /* one rank at most, no tags, no times: bytes pass unchanged */
    bool tags, times;
    bool pty; /* output_of_pty() */
    int nranks;
    struct rank *ranks;                 /* owned */
    size_t tail_size;                   /* bytes of each */
    size_t held;                        /* bytes of all partial lines */
    struct rankfiles *files;            /* owned, or NULL */
    const struct output_hosts *hosts;   /* borrowed */
    const struct output_events *events; /* borrowed */
    void *arg;
    char second[24], zone[8]; /* `second_s` as text */
    time_t second_s;
};

/* Print what has arrived: complete lines; the rest is held. */
void lines_feed(struct output *o, int rank, enum out_stream which, const char *data,
                size_t size);
/* The stream has ended: print what is held. */
void lines_end(struct output *o, int rank, enum out_stream which);
/* Print the partial lines on terminals: they may be prompts. */
void lines_show_partials(struct output *o);

#endif
