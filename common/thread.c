/* common/thread.c - see thread.h */
#include "common/thread.h"

#include <signal.h>
#include <time.h>

int thread_start(pthread_t *thread, void *(*call)(void *arg), void *arg)
{
    sigset_t all, before;
    pthread_t own;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits it */
    int rc = pthread_create(thread ? thread : &own, NULL, call, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0 && !thread)
        pthread_detach(own);
    return rc;
}

void cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t steady;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &steady);
    pthread_condattr_destroy(&steady);
}

int cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms)
{
    struct timespec until = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
    return pthread_cond_timedwait(cond, lock, &until);
}
