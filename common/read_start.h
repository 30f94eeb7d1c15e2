/* common/read_start.h - the beginning of a small file, such as those of /proc */
#ifndef COMMON_READ_START_H
#define COMMON_READ_START_H

#include <sys/types.h>

/* By one read, at most size - 1 bytes and '\0', which is there also on failure. Returns
 * how many, or -1 with errno. */
ssize_t read_start(const char *path, char *text, size_t size);

#endif
