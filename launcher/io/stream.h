/* launcher/io/stream.h - the output streams of a rank, and of ddprun */
#ifndef LAUNCHER_IO_STREAM_H
#define LAUNCHER_IO_STREAM_H

enum out_stream { OUT_STDOUT, OUT_STDERR };

/* The name of a rank's host; `arg` is that of output_create(). */
struct output_hosts {
    const char *(*in_path)(int rank, void *arg); /* for %h of --output-filename */
    const char *(*in_tag)(int rank, void *arg);  /* NULL: only one host, not in the tag */
};

#endif
