/* worker/data/cifar.h - CIFAR's binary records: labels, then 32x32 pixels of red, green
 * and blue
 *
 * https://www.cs.toronto.edu/~kriz/cifar.html, "binary version". CIFAR-10 is
 * data_batch_1.bin to data_batch_5.bin (as many of them as are there) and test_batch.bin,
 * one label a record; CIFAR-100 train.bin and test.bin, a coarse label, which is passed
 * over, and a fine one.
 */
#ifndef WORKER_DATA_CIFAR_H
#define WORKER_DATA_CIFAR_H

#include "worker/data/dataset.h"

#include <stdbool.h>

/* Does the folder have this file? */
bool data_has(const char *folder, const char *file);

/* Fills the shape and both parts from the folder out->name; free them also after a
 * failure. */
int cifar_load(struct dataset *out, struct ddp_err *err);

#endif
