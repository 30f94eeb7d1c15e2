/* common/file_map.h - a file's contents, mapped for reading
 *
 * The file must not be truncated while it is mapped.
 */
#ifndef COMMON_FILE_MAP_H
#define COMMON_FILE_MAP_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

struct file_map {
    const uint8_t *at; /* owned; NULL: none */
    size_t bytes;
};

/* Maps a regular file; does not wait for the writer of a FIFO. */
int file_map_open(const char *path, struct file_map *out, struct ddp_err *err);
/* Reads all of it: a disk or a server that fails is an error, and later no SIGBUS. Where the
 * kernel cannot (Linux before 5.14), it does nothing. */
int file_map_load(const char *path, const struct file_map *map, struct ddp_err *err);
void file_map_close(struct file_map *map); /* a zeroed struct is allowed */

#endif
