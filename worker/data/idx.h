/* worker/data/idx.h - IDX files, MNIST's format: unsigned bytes in one to four dimensions
 *
 * Layout (http://yann.lecun.com/exdb/mnist): two zero bytes, the element type (8:
 * unsigned bytes, the only one read here), the number of dimensions, each dimension as a
 * big-endian 32-bit number, then the elements. The length must be exactly what the
 * dimensions say.
 */
#ifndef WORKER_DATA_IDX_H
#define WORKER_DATA_IDX_H

#include "common/file_map.h"
#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

enum { IDX_MAX_DIMS = 4 };

struct idx {
    int ndim;
    uint32_t dims[IDX_MAX_DIMS];
    size_t count;        /* elements: the product of the dimensions */
    char kind;           /* of an element: 'u', 'i', 'b' or 'f' (npy.h); */
    unsigned width;      /* its bytes. Of an IDX file 'u', 1 */
    uint8_t *data;       /* owned; or in `map`, and then read-only */
    struct file_map map; /* owned: of a plain file */
};

/* Parses a file's contents, plain or gz, in memory. It must have `ndim` dimensions.
 * `name` is for the error text. Elements are copied or inflated only when the header is
 * right. */
int idx_parse(const char *name, const uint8_t *bytes, size_t nbytes, int ndim,
              struct idx *out, struct ddp_err *err);

/* The same from `path`, or from `path`.gz if `path` does not exist. A plain file is
 * mapped, so that it may be larger than memory and ranks of a host share one copy; it
 * must not be truncated while in use. Finish it also after a failure. */
int idx_read(const char *path, int ndim, struct idx *out, struct ddp_err *err);

/* The bytes of an embedded file, "train-images-idx3-ubyte.gz" or the like; NULL for any
 * other name. In digits.c. */
const uint8_t *digits_file(const char *name, size_t *nbytes);

void idx_finish(struct idx *idx); /* frees; a zeroed struct is allowed */

#endif
