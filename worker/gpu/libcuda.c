/* worker/gpu/libcuda.c - see libcuda.h */
#include "worker/gpu/libcuda.h"

#include "common/err.h"
#include "common/mem.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

enum {
    NOT_READY = 600,
    MEMORY_TYPE = 2,
    IS_MANAGED = 8,
    DEVICE = 2,
    NON_BLOCKING = 1,
    NO_TIMING = 2
};

static struct {
    void *library;
    int (*get_attribute)(void *data, int attribute, uint64_t p);
    int (*init)(unsigned flags);
    int (*context)(void **context);
    int (*set_context)(void *context);
    int (*device)(int *device, int number);
    int (*retain)(void **context, int device);
    int (*alloc)(uint64_t *at, size_t bytes);
    int (*free)(uint64_t at);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, cuda_stream s);
    int (*stream_create)(cuda_stream *s, unsigned flags);
    int (*stream_destroy)(cuda_stream s);
    int (*event_create)(cuda_event *e, unsigned flags);
    int (*event_destroy)(cuda_event e);
    int (*event_record)(cuda_event e, cuda_stream s);
    int (*event_query)(cuda_event e);
    int (*error_name)(int error, const char **name);
} cuda;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool find_all(void *library)
{
    static const struct {
        const char *name;
        void *to;
    } names[] = {
        {"cuPointerGetAttribute", &cuda.get_attribute},
        {"cuInit", &cuda.init},
        {"cuCtxGetCurrent", &cuda.context},
        {"cuCtxSetCurrent", &cuda.set_context},
        {"cuDeviceGet", &cuda.device},
        {"cuDevicePrimaryCtxRetain", &cuda.retain},
        {"cuMemAlloc_v2", &cuda.alloc},
        {"cuMemFree_v2", &cuda.free},
        {"cuMemcpyAsync", &cuda.copy},
        {"cuStreamCreate", &cuda.stream_create},
        {"cuStreamDestroy_v2", &cuda.stream_destroy},
        {"cuEventCreate", &cuda.event_create},
        {"cuEventDestroy_v2", &cuda.event_destroy},
        {"cuEventRecord", &cuda.event_record},
        {"cuEventQuery", &cuda.event_query},
        {"cuGetErrorName", &cuda.error_name},
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        void *found = dlsym(library, names[i].name);
        if (!found)
            return false;
        *(void **)names[i].to = found;
    }
    __atomic_store_n(
        &cuda.library, library,
        __ATOMIC_RELEASE); /* published last: all functions were stored before */
    return true;
}

/* The number of objects loaded so far: the search is repeated only if it has changed. */
static int count_loads(struct dl_phdr_info *info, size_t size, void *adds)
{
    *(unsigned long long *)adds = info->dlpi_adds;
    return 1;
}

/* dl_iterate_phdr() takes a lock, which also waits until earlier writes have reached
 * the other CPUs: a third of the time of a short message. The coarse clock, which
 * advances by some milliseconds, is read without a lock; loading CUDA and getting
 * memory from it takes many ticks. */
static int64_t tick(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Has the library been loaded by now? A search without a result is valid for the tick
 * in which it began; it is recorded after its end, so that no other thread relies on
 * an unfinished one. */
static void *look_for_library(void)
{
    static int64_t looked_in;
    static unsigned long long looked_at;
    unsigned long long adds = 0;
    int64_t now = tick();
    if (now == __atomic_load_n(&looked_in, __ATOMIC_ACQUIRE))
        return NULL;
    dl_iterate_phdr(count_loads, &adds);
    void *found = NULL;
    pthread_mutex_lock(&lock);
    if (cuda.library || adds != looked_at) {
        found =
            cuda.library ? cuda.library : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (found && !cuda.library && !find_all(found))
            found = NULL;
        looked_at = adds;
    }
    if (!found)
        __atomic_store_n(&looked_in, now, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return found;
}

bool cuda_is_device(const void *p)
{
    if (!__atomic_load_n(&cuda.library, __ATOMIC_ACQUIRE) && !look_for_library())
        return false;
    int type = 0, managed = 0;
    uint64_t address = (uint64_t)(uintptr_t)p;
    if (cuda.get_attribute(&type, MEMORY_TYPE, address) != 0 || type != DEVICE)
        return false;
    return cuda.get_attribute(&managed, IS_MANAGED, address) != 0 || !managed;
}

/* ---- interface ---- */

static int check(int rc, const char *what, struct ddp_err *err)
{
    const char *name = "?";
    if (rc == 0)
        return 0;
    cuda.error_name(rc, &name);
    return err_set(err, "%s: %s", what, name ? name : "?");
}

int cuda_open(int device, struct ddp_err *err)
{
    pthread_mutex_lock(&lock);
    bool found = cuda.library != NULL;
    if (!found) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        found = library && find_all(library);
    }
    pthread_mutex_unlock(&lock);
    if (!found)
        return err_set(err, "there is no CUDA driver on this machine (libcuda.so.1)");
    void *context = NULL;
    int number;
    if (check(cuda.init(0), "cuInit", err) < 0)
        return -1;
    if (cuda.context(&context) == 0 && context)
        return 0;
    if (check(cuda.device(&number, device), "cuDeviceGet", err) < 0 ||
        check(cuda.retain(&context, number), "cuDevicePrimaryCtxRetain", err) < 0)
        return -1;
    return check(cuda.set_context(context), "cuCtxSetCurrent", err);
}

void *cuda_context(void)
{
    void *context = NULL;
    return cuda.context && cuda.context(&context) == 0 ? context : NULL;
}

void cuda_use_context(void *context)
{
    if (context)
        cuda.set_context(context);
}

int cuda_stream_create(cuda_stream *s, struct ddp_err *err)
{
    return check(cuda.stream_create(s, NON_BLOCKING), "cuStreamCreate", err);
}

int cuda_event_create(cuda_event *e, struct ddp_err *err)
{
    return check(cuda.event_create(e, NO_TIMING), "cuEventCreate", err);
}

int cuda_memory_create(uint64_t *at, size_t bytes, struct ddp_err *err)
{
    return check(cuda.alloc(at, bytes), "cuMemAlloc", err);
}

void cuda_memory_destroy(uint64_t at)
{
    if (at)
        cuda.free(at);
}

int cuda_copy(void *to, const void *from, size_t bytes, cuda_stream s,
              struct ddp_err *err)
{
    return check(cuda.copy((uintptr_t)to, (uintptr_t)from, bytes, s), "cuMemcpyAsync",
                 err);
}

void cuda_stream_destroy(cuda_stream s)
{
    if (s)
        cuda.stream_destroy(s);
}

void cuda_event_destroy(cuda_event e)
{
    if (e)
        cuda.event_destroy(e);
}

int cuda_event_record(cuda_event e, cuda_stream s, struct ddp_err *err)
{
    return check(cuda.event_record(e, s), "cuEventRecord", err);
}

int cuda_event_done(cuda_event e, struct ddp_err *err)
{
    int rc = cuda.event_query(e);
    return rc == NOT_READY ? 0 : rc == 0 ? 1 : check(rc, "cuEventQuery", err);
}
