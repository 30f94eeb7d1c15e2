/* common/write_all.h - write a whole buffer to a file */
#ifndef COMMON_WRITE_ALL_H
#define COMMON_WRITE_ALL_H

#include <stddef.h>

/* 0, or -1 with errno. Waits without a limit, also if the descriptor is non-blocking:
 * another process may have set O_NONBLOCK. */
int write_all(int fd, const void *data, size_t size);

#endif
