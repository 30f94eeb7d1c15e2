/* launcher/plugins/error_file/error_file.h - a rank's exception, from its
 * TORCHELASTIC_ERROR_FILE
 *
 * PyTorch's @record writes a JSON object there when the function it decorates raises:
 *
 *     {"message": {"message": "ValueError: boom", "extraInfo": {...}}}
 *
 * (torch/distributed/elastic/multiprocessing/errors; the inner object may also be a bare
 * string.) The file is a memfd of the agent, named /proc/PID/fd/N: it needs no directory,
 * collides with no other file, and leaves nothing behind however the agent ends.
 */
#ifndef LAUNCHER_PLUGINS_ERROR_FILE_ERROR_FILE_H
#define LAUNCHER_PLUGINS_ERROR_FILE_ERROR_FILE_H

#include <stddef.h>

enum { ERROR_FILE_PATH = 40 };

/* Returns a descriptor, which the caller closes, and the path by which other processes of
 * the user open it. -1: too few descriptors are free; the rank then gets no error file.
 */
int error_file_open(char path[ERROR_FILE_PATH]);

/* The first line of the message in the file, malloc'ed; NULL: empty or malformed. */
char *error_file_read(int fd);

/* The same for JSON text. Control characters are replaced by blanks. */
char *error_file_message(const char *json, size_t n);

#endif
