/* common/thread.h - start a thread that receives no signals */
#ifndef COMMON_THREAD_H
#define COMMON_THREAD_H

#include <pthread.h>

/* Run call(arg) in a thread with all signals blocked: the process' other threads handle
 * them. `thread`: to be joined; NULL: it is detached. 0, or an error number. */
int thread_start(pthread_t *thread, void *(*call)(void *arg), void *arg);

#endif
