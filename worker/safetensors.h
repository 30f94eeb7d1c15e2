/* worker/safetensors.h - files of named arrays:
 * https://github.com/huggingface/safetensors
 *
 * Layout: the length of a JSON text as a little-endian 64-bit number, the text, the
 * arrays without gaps. The text maps each name to its type, shape and place, and
 * "__metadata__" to a table of strings. Arrays are written as float32; those of 16 bits
 * (F16, BF16) are read as float32, too. We also write the CRC-32 of each array beside its
 * place, which other readers pass over and other writers leave out: in the metadata,
 * which programs copy to a file with other arrays, it would be wrong there.
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

static inline size_t array_count(const struct array *a)
{
    size_t n = 1;
    for (int i = 0; i < a->ndim; i++)
        n *= (size_t)a->dims[i];
    return n;
}

/* Can an array have this name? UTF-8, and none that begins with "__". */
bool safetensors_can_name(const char *name);

/* Writes all to `path`.part, syncs, renames to `path`, and syncs the folder: at any
 * moment `path` is the whole old file or the whole new one. `*lock` (may be NULL) is -1
 * before, and then a descriptor with a lock (flock) on the file, taken before the rename;
 * the caller closes it, also after a failure. `metadata` holds
 * "KEY=value" entries. After a failure the old file is unchanged and `path`.part is
 * removed. */
int safetensors_write(const char *path, const struct strv *metadata,
                      const struct array *arrays, size_t n, int *lock,
                      struct ddp_err *err);

struct safetensors; /* a file, mapped and validated, checksums included */

struct safetensors *safetensors_read(const char *path, struct ddp_err *err);
/* The same from a file's contents, borrowed. `name` is for errors. */
struct safetensors *safetensors_parse(const char *name, const uint8_t *bytes,
                                      size_t nbytes, struct ddp_err *err);
void safetensors_free(struct safetensors *f); /* NULL is allowed */

/* Both borrow from `f`. NULL: no such key. */
const char *safetensors_metadata(const struct safetensors *f, const char *key);
/* Returns 1 with `out` filled, 0 if there is no array of that name, -1 if its type is
 * not supported or it has more than 4 dimensions. `out` borrows from `f`. */
int safetensors_find(struct safetensors *f, const char *name, struct array *out,
                     struct ddp_err *err);

#endif
