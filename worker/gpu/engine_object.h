/* worker/gpu/engine_object.h - what needs CUDA's libraries: ddp-engine-cuda.so, loaded if
 * there is a GPU
 *
 * So ddp-train and libddp run without CUDA and a driver. DDP_ENGINE names another file.
 * It is never closed, which CUDA does not support.
 */
#ifndef WORKER_GPU_ENGINE_OBJECT_H
#define WORKER_GPU_ENGINE_OBJECT_H

#include "include/ddprun/err.h"

#include <stdbool.h>

/* May there be a GPU? Without asking CUDA, which takes a tenth of a second. */
bool engine_object_wanted(void);

/* The address of `symbol` in the object. NULL with the reason: no driver, no object, or
 * one of another build, by the text `ddp_engine_build`. */
const void *engine_object_symbol(const char *symbol, struct ddp_err *err);

#endif
