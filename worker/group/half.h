/* worker/group/half.h - the 16-bit floats: IEEE binary16, and bfloat16
 *
 * Widening is exact; narrowing rounds to the nearest, ties to even, overflows to
 * infinity, keeps denormals, and makes every NaN a quiet one.
 */
#ifndef WORKER_GROUP_HALF_H
#define WORKER_GROUP_HALF_H

#include <stddef.h>
#include <stdint.h>

/* One body, compiled once per instruction set; the dynamic linker picks. A sanitizer's
 * runtime is not there yet when the resolver of a clone runs. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define CLONES
#endif

void half_widen(float *out, const uint16_t *in, size_t n);
void half_narrow(uint16_t *out, const float *in, size_t n);
void bf16_widen(float *out, const uint16_t *in, size_t n);
void bf16_narrow(uint16_t *out, const float *in, size_t n);

#endif
