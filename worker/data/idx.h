/* worker/data/idx.h - files of one array: IDX, and NumPy's .npy
 *
 * IDX is MNIST's format: unsigned bytes in one to four dimensions. Layout
 * (http://yann.lecun.com/exdb/mnist): two zero bytes, the element type (8: unsigned
 * bytes, the only one read here), the number of dimensions, each dimension as a
 * big-endian 32-bit number, then the elements. The length must be exactly what the
 * dimensions say.
 *
 * NumPy's .npy (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html):
 * "\x93NUMPY", a version, the length of a header, the header, which is a Python
 * dictionary with the keys descr, fortran_order and shape, and the elements. They are to
 * be in C's order and little-endian: bytes and other integers, booleans, or float32.
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
    char kind;           /* of an element: 'u', 'i', 'b' or 'f' */
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

/* Parses a .npy file's contents, of one to IDX_MAX_DIMS dimensions; the elements stay
 * where they are. `name` is for the error. */
int npy_parse(const char *name, const uint8_t *bytes, size_t nbytes, struct idx *out,
              struct ddp_err *err);
/* The same from a file, which is mapped, as idx_read() does; `ndim` may differ. */
int npy_read(const char *path, int ndim, struct idx *out, struct ddp_err *err);

/* Element i of integers of any width; of kind 'i' it is a two's complement. */
uint64_t npy_integer(const struct idx *from, size_t i);

void idx_finish(struct idx *idx); /* frees; a zeroed struct is allowed */

#endif
