/* common/text_file.h - a small text file as one string */
#ifndef COMMON_TEXT_FILE_H
#define COMMON_TEXT_FILE_H

#include "include/ddprun/err.h"

enum { TEXT_FILE_MAX = 1 << 20 };

/* The whole file; the caller frees. NULL with an error that calls it the `what` file:
 * it cannot be read, has TEXT_FILE_MAX bytes or more, or holds a zero byte. */
char *text_file_read(const char *what, const char *path, struct ddp_err *err);

#endif
