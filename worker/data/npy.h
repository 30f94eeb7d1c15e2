/* worker/data/npy.h - NumPy's .npy files
 *
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html: "\x93NUMPY", a
 * version, the length of a header, the header, which is a Python dictionary with the keys
 * descr, fortran_order and shape, and the elements. They are to be in C's order and
 * little-endian: bytes and other integers, booleans, or float32.
 */
#ifndef WORKER_DATA_NPY_H
#define WORKER_DATA_NPY_H

#include "worker/data/idx.h"

/* Parses a file's contents, of one to IDX_MAX_DIMS dimensions; the elements stay where
 * they are. `name` is for the error. */
int npy_parse(const char *name, const uint8_t *bytes, size_t nbytes, struct idx *out,
              struct ddp_err *err);
/* The same from a file, which is mapped, as idx_read() does. */
int npy_read(const char *path, struct idx *out, struct ddp_err *err);

/* Element i of integers of any width; -1: none that is below 2^63. */
int64_t npy_integer(const struct idx *from, size_t i);

#endif
