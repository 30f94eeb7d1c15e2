/* common/text_file.h - small text files: read, private, replaced */
#ifndef COMMON_TEXT_FILE_H
#define COMMON_TEXT_FILE_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <sys/types.h>

enum { TEXT_FILE_MAX = 1 << 20 };

/* The whole file; the caller frees. NULL with an error that calls it the `what` file:
 * it cannot be read, has TEXT_FILE_MAX bytes or more, or holds a zero byte. */
char *text_file_read(const char *what, const char *path, struct ddp_err *err);

/* Open for reading a regular file, no symbolic link, of this user, that others cannot
 * read. -1 with `err` and errno, which is EPERM if it is another kind of file. */
int text_file_open_private(const char *path, struct ddp_err *err);

/* Write a temporary file beside `path` and rename it: readers see the old file or all of
 * the new one. The umask applies to `mode`. 0, or -1 with errno; nothing is left then. */
int text_file_replace(const char *path, const char *text, size_t size, mode_t mode);

#endif
