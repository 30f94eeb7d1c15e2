/* tests/worker/kernels/plain.h - the reference for the engines: naive loops, one line per
 * formula
 */
#ifndef TESTS_WORKER_KERNELS_PLAIN_H
#define TESTS_WORKER_KERNELS_PLAIN_H

#include "worker/kernels/kernels.h"

extern const struct kernels kernels_plain;

#endif
