/* common/thread.c - see thread.h */
#include "common/thread.h"

#include <signal.h>

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
