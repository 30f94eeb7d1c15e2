/* worker/cuda/failure.h - the first failure in a phase: a step, its capture, a copy of
 * the model
 *
 * A step is hundreds of calls that put work on streams; any of them may fail, and none
 * needs the result of another. So, as CUDA keeps its last error, a failure is kept for
 * the calling thread, with what was being done. From then on CUDA() and its like make no
 * call, LAUNCH() and comm.h launch nothing, so that nothing is done with a handle that
 * could not be made. cuda_outcome() asks once, at the end of the phase.
 *
 * Functions that return void report failures this way; those with `err` call
 * cuda_outcome() themselves.
 */
#ifndef WORKER_CUDA_FAILURE_H
#define WORKER_CUDA_FAILURE_H

#include "include/ddprun/err.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is done from here on, for the error: "'conv1' forward". */
void cuda_doing(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *cuda_doing_now(void);

/* Makes this call, unless something has failed. True: nothing has, this call included. */
#define CUDA(call) cuda_note(cuda_failed() ? cudaSuccess : (call))
bool cuda_note(cudaError_t rc);

/* Has something failed, for which cuda_outcome() has not asked yet? */
bool cuda_failed(void);
/* Something has, in a sentence; only the first counts. */
void cuda_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* 0; or -1 with the first failure, "what was being done: the library's message", which
 * is then forgotten. `err` may be NULL. */
int cuda_outcome(struct ddp_err *err);

/* After each launch of a kernel, which may have been rejected: "kernel 'finish' on GPU
 * 1". CUDA keeps the error, but not the name. */
void cuda_launched(const char *kernel);

#ifdef __cplusplus
}
#endif
#endif
