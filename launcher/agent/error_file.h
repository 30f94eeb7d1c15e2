/* launcher/agent/error_file.h - where a rank tells its exception: TORCHELASTIC_ERROR_FILE
 *
 * PyTorch's @record writes a JSON object there when the function it decorates raises:
 *
 *     {"message": {"message": "ValueError: boom", "extraInfo": {...}}}
 *
 * (torch/distributed/elastic/multiprocessing/errors; the inner object may also be a bare
 * string.) The file is one in memory, held by the agent and named by its descriptor,
 * /proc/PID/fd/N. So there is no directory to be made, nobody else's file to be met, and
 * nothing that could be left behind, however the agent ends.
 */
#ifndef LAUNCHER_AGENT_ERROR_FILE_H
#define LAUNCHER_AGENT_ERROR_FILE_H

#include <stddef.h>

enum { ERROR_FILE_PATH = 40 };

/* A descriptor, to be closed, and the name by which others of the user open it. -1: there
 * is none to spare; a rank does without. */
int error_file_open(char path[ERROR_FILE_PATH]);

/* The first line of what was written there, malloc'ed; NULL: nothing, or nothing we can
 * read. */
char *error_file_read(int fd);

/* The same, of text. Control characters come out as blanks. */
char *error_file_message(const char *json, size_t n);

#endif
