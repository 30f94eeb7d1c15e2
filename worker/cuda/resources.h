/* worker/cuda/resources.h - device and pinned memory, streams and events
 *
 * A failure is reported by failure.h; the function then returns NULL.
 */
#ifndef WORKER_CUDA_RESOURCES_H
#define WORKER_CUDA_RESOURCES_H

#include "worker/cuda/failure.h"
#include "worker/optim/optim.h"

#include <stddef.h>

/* What an engine has on a device, in the order in which it was made. All of it is made on
 * the current device, which is r's, and freed at once. */
struct resources {
    int device; /* its number, for the error */
    struct resource {
        enum { DEVICE_MEMORY, PINNED_MEMORY, STREAM, EVENT } kind;
        void *at;
        const char *what; /* borrowed, of device memory: "activations" */
        size_t bytes;
    } * all; /* owned */
    size_t n;
    bool full; /* an allocation failed for lack of memory */
};

/* Zeroed memory. If there is too little, the error names the device, our allocations and
 * the memory of others. */
void *device_alloc(struct resources *r, const char *what, size_t bytes);
/* The same, with these bytes of the host. */
void *device_copy(struct resources *r, const char *what, size_t bytes, const void *from);
/* Memory for an optimiser's states of so many weights; returns its borders (optim.h). */
size_t *optim_alloc(struct resources *r, const struct optim *o, size_t floats,
                    float *states[OPTIM_STATES]);
/* Bytes allocated under the name `what`; NULL: all. */
size_t device_allocated(const struct resources *r, const char *what);

void *pinned_alloc(struct resources *r, size_t bytes);
/* `first`: its kernels have priority. `timed`: see cudaEventElapsedTime(). */
cudaStream_t stream_make(struct resources *r, bool first);
cudaEvent_t event_make(struct resources *r, bool timed);

void resources_free(struct resources *r);

/* Makes later work on `to` wait for the work now on `from`, by this event. */
void stream_follow(cudaStream_t to, cudaStream_t from, cudaEvent_t by);

#endif
