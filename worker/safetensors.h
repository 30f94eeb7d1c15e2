/* worker/safetensors.h - files of named arrays:
 * https://github.com/huggingface/safetensors
 *
 * Layout: the length of a JSON text as a little-endian 64-bit number, the text, the
 * arrays without gaps. The text maps each name to its type, shape and place, and
 * "__metadata__" to a table of strings. Arrays are written as float32; those of 16 bits
 * (F16, BF16) are read as float32, too.
 */
#ifndef WORKER_SAFETENSORS_H
#define WORKER_SAFETENSORS_H

#include "common/strv.h"
#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct array {
    const char *name; /* borrowed */
    int ndim, dims[4];
    const float *data; /* borrowed, [the product of dims] */
};

/* Write all to `path`.part, sync, rename to `path`, sync the folder: at any moment there
 * is the old file or the new one, and never half of one. `metadata` holds "KEY=value"
 * entries. On failure the old file is as it was, and the side file is gone. */
int safetensors_write(const char *path, const struct strv *metadata,
                      const struct array *arrays, size_t n, struct ddp_err *err);
/* The same; `*lock` is a descriptor that holds a lock (flock) on the file, from before it
 * had its name on: the caller's to close; -1: there is none. */
int safetensors_write_locked(const char *path, const struct strv *metadata,
                             const struct array *arrays, size_t n, int *lock,
                             struct ddp_err *err);

struct safetensors; /* a file, read whole and believed */

struct safetensors *safetensors_read(const char *path, struct ddp_err *err);
/* The same of what a file called `name` holds: `bytes` are malloc'ed, and taken, also on
 * failure. */
struct safetensors *safetensors_parse(const char *name, uint8_t *bytes, size_t nbytes,
                                      struct ddp_err *err);
void safetensors_free(struct safetensors *f); /* NULL is fine */

/* Both borrow from `f`. NULL when there is no such key. */
const char *safetensors_metadata(const struct safetensors *f, const char *key);
/* 1 with `out` filled, 0 when there is none of that name, -1 when it is of another type
 * or has more than 4 dimensions. What had to be converted is `f`'s, too. */
int safetensors_find(struct safetensors *f, const char *name, struct array *out,
                     struct ddp_err *err);

#endif
