/* tests/fuzz/fuzz.h - what a fuzz target provides
 *
 * One target per decoder, in two builds: with libFuzzer (clang, option `fuzz`), and with
 * driver.c, a plain loop of mutations that any compiler runs. See run.sh.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Feeds the decoder; aborts when something is wrong. libFuzzer's name and type. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The n-th valid input, to start mutating from; returns its size, at most `room`. */
size_t fuzz_seed(unsigned n, uint8_t *data, size_t room);

#endif
