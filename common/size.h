/* common/size.h - amounts of memory */
#ifndef COMMON_SIZE_H
#define COMMON_SIZE_H

#include "include/ddprun/err.h"

#include <stdint.h>

/* "8192", "8k", "64G", "64GB", "64GiB", "1.5T" to bytes; k, M, G and T are powers of 1024
 * in either case, a bare number is bytes. At most 2^62. */
int size_parse(const char *text, int64_t *bytes, struct ddp_err *err);

#endif
