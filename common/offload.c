/* common/offload.c - see offload.h */
#include "common/offload.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct offload {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool returned, left; /* call returned, owner left: the second one frees */
    void (*call)(void *copy);
    void (*undo)(void *copy); /* NULL: nothing is to be undone */
    void *copy;               /* owned */
};

static void let_go(struct offload *a)
{
    if (a->undo)
        a->undo(a->copy);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->copy);
    free(a);
}

static void *run_call(void *arg)
{
    struct offload *a = arg;
    a->call(a->copy);
    pthread_mutex_lock(&a->lock);
    a->returned = true;
    bool last = a->left;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (last) {
        pthread_detach(pthread_self());
        let_go(a);
    }
    return NULL;
}

static struct offload *create(void (*call)(void *copy), const void *arg, size_t bytes)
{
    struct offload *a = xcalloc(1, sizeof *a);
    cond_init(&a->changed);
    pthread_mutex_init(&a->lock, NULL);
    a->call = call;
    a->copy = xcalloc(1, bytes);
    memcpy(a->copy, arg, bytes);
    return a;
}

struct offload *offload_begin(void (*call)(void *copy), const void *arg, size_t bytes,
                              struct ddp_err *err)
{
    struct offload *a = create(call, arg, bytes);
    int rc = thread_start(&a->thread, run_call, a);
    if (rc != 0) {
        errno = rc;
        err_spawn(err, "no thread could be started");
        let_go(a);
        return NULL;
    }
    return a;
}

const void *offload_wait(struct offload *a, int64_t wait_ms)
{
    int64_t deadline_ms = now_ms() + wait_ms;
    LOCKED(&a->lock);
    int rc = 0;
    while (!a->returned && rc == 0)
        rc = cond_wait_until(&a->changed, &a->lock, deadline_ms);
    return a->returned ? a->copy : NULL;
}

void offload_end(struct offload *a)
{
    if (a)
        offload_abandon(a, NULL);
}

void offload_abandon(struct offload *a, void (*undo)(void *copy))
{
    pthread_mutex_lock(&a->lock);
    a->left = true;
    a->undo = undo;
    bool last = a->returned;
    pthread_mutex_unlock(&a->lock);
    if (last) {
        pthread_join(a->thread, NULL); /* it ends at once: a fork may follow */
        let_go(a);
    }
}
