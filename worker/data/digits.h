/* worker/data/digits.h - the four IDX files of worker/data/digits/, embedded in the
 * program
 */
#ifndef WORKER_DATA_DIGITS_H
#define WORKER_DATA_DIGITS_H

#include <stddef.h>
#include <stdint.h>

/* The bytes of "train-images-idx3-ubyte.gz" and the like; NULL for any other name. */
const uint8_t *digits_file(const char *name, size_t *nbytes);

#endif
