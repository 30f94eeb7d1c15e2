/* common/thread.h - threads that receive no signals, and waits with a deadline */
#ifndef COMMON_THREAD_H
#define COMMON_THREAD_H

#include "common/scoped.h"

#include <pthread.h>
#include <stdint.h>

/* To the end of the block: LOCKED(&w->lock); */
#define LOCKED(lock)      \
    SCOPED(thread_unlock) \
    pthread_mutex_t *locked_ __attribute__((unused)) = thread_lock(lock)

static inline pthread_mutex_t *thread_lock(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    return lock;
}

static inline void thread_unlock(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

/* Run call(arg) in a thread with all signals blocked: the process' other threads handle
 * them. `thread`: to be joined; NULL: it is detached. 0, or an error number. */
int thread_start(pthread_t *thread, void *(*call)(void *arg), void *arg);

/* A condition for cond_wait_until(); pthread_cond_destroy() ends it. */
void cond_init(pthread_cond_t *cond);
/* As pthread_cond_timedwait(), until now_ms() (duration.h) is `deadline_ms`. */
int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);

#endif
