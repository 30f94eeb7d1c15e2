/* tests/worker/fake_cuda.c - a libcuda without a GPU, for the tests of the nccl backend
 *
 * "Device memory" is host memory that is recorded as such. A stream is a thread that
 * runs the tasks of fake_cuda_run() in order. An event reports completion at the second
 * query at the earliest, so that code that does not query again reads too early.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY_TYPE = 2, DEVICE = 2, INVALID = 1, NOT_READY = 600, ROOM = 256 };

static struct {
    uint64_t at;
    size_t bytes;
} blocks[ROOM];
static int nblocks;

struct event {
    _Atomic int recorded, passed;
    bool asked;
};

struct task {
    struct task *next;
    void (*run)(void *arg);
    void *arg;
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct task *first, **last;
    bool ends;
};

/* Freed memory is no longer device memory. */
int cuMemFree_v2(uint64_t at)
{
    for (int i = 0; i < nblocks; i++) {
        if (blocks[i].at == at)
            blocks[i].bytes = 0;
    }
    free((void *)(uintptr_t)at);
    return 0;
}

int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
    void *p = nblocks < ROOM ? calloc(1, bytes + 1) : NULL;
    if (!p)
        return INVALID;
    *at = (uint64_t)(uintptr_t)p;
    blocks[nblocks].at = *at;
    blocks[nblocks++].bytes = bytes;
    return 0;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t p)
{
    for (int i = 0; i < nblocks; i++) {
        if (p >= blocks[i].at && p < blocks[i].at + blocks[i].bytes) {
            *(int *)data = attribute == MEMORY_TYPE ? DEVICE : 0;
            return 0;
        }
    }
    return INVALID; /* as CUDA does for memory it does not know */
}

int cuInit(unsigned flags)
{
    return 0;
}

int cuCtxGetCurrent(void **context)
{
    *context = NULL;
    return 0;
}

int cuCtxSetCurrent(void *context)
{
    return context ? 0 : INVALID;
}

int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number < 16 ? 0 : INVALID;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static int some;
    *context = &some;
    return 0;
}

static void *work(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->lock);
    while (s->first || !s->ends) {
        struct task *t = s->first;
        if (!t) {
            pthread_cond_wait(&s->more, &s->lock);
            continue;
        }
        s->first = t->next;
        if (!s->first)
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        t->run(t->arg);
        free(t);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    free(s);
    return NULL;
}

int cuStreamCreate(struct stream **made, unsigned flags)
{
    struct stream *s = *made = calloc(1, sizeof *s);
    pthread_t thread;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    s->last = &s->first;
    return pthread_create(&thread, NULL, work, s) == 0 && pthread_detach(thread) == 0
               ? 0
               : INVALID;
}

/* Queued tasks run first. */
int cuStreamDestroy_v2(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

void fake_cuda_run(struct stream *s, void (*run)(void *arg), void *arg)
{
    struct task *t = malloc(sizeof *t);
    *t = (struct task){NULL, run, arg};
    pthread_mutex_lock(&s->lock);
    *s->last = t;
    s->last = &t->next;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
}

/* A copy queued in a stream. */
struct copy {
    uint64_t to, from;
    size_t bytes;
};

static void copy(void *arg)
{
    struct copy *c = arg;
    memcpy((void *)(uintptr_t)c->to, (const void *)(uintptr_t)c->from, c->bytes);
    free(c);
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, struct stream *s)
{
    struct copy *c = malloc(sizeof *c);
    *c = (struct copy){to, from, bytes};
    fake_cuda_run(s, copy, c);
    return 0;
}

int cuEventCreate(struct event **e, unsigned flags)
{
    *e = calloc(1, sizeof **e);
    return 0;
}

/* Waits until the stream has passed it: callers destroy events after what they mark has
 * been given up. */
int cuEventDestroy_v2(struct event *e)
{
    while (atomic_load(&e->passed) != atomic_load(&e->recorded))
        sched_yield();
    free(e);
    return 0;
}

static void pass(void *arg)
{
    struct event *e = arg;
    atomic_fetch_add(&e->passed, 1);
}

int cuEventRecord(struct event *e, struct stream *s)
{
    atomic_fetch_add(&e->recorded, 1);
    e->asked = false;
    fake_cuda_run(s, pass, e);
    return 0;
}

int cuEventQuery(struct event *e)
{
    bool done = e->asked && atomic_load(&e->passed) == atomic_load(&e->recorded);
    e->asked = true;
    return done ? 0 : NOT_READY;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == INVALID ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
    return 0;
}
