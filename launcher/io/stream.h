/* launcher/io/stream.h - the output streams of a rank, and of ddprun */
#ifndef LAUNCHER_IO_STREAM_H
#define LAUNCHER_IO_STREAM_H

enum out_stream { OUT_STDOUT, OUT_STDERR };

#endif
