/* worker/kernels/pool.c - see pool.h
 *
 * A pool belongs to the thread that calls it: threads that compute different layers at
 * the same time have one each.
 *
 * A turn counter tells helpers that there is work, a countdown tells the caller that
 * it is done. Both are polled without a lock for some time; then threads sleep on
 * condition variables.
 */
#include "worker/kernels/pool.h"

#include "common/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { LOOKS = 20000 }; /* polls before sleeping: about 20 us */

struct helper {
    struct pool *pool; /* borrowed */
    int part;
    pthread_t thread;
};

static _Thread_local struct pool {
    pthread_mutex_t lock;
    pthread_cond_t begun, done;
    struct helper *helpers; /* owned; the first is the caller's and not used */
    int threads;
    pool_work work;
    void *arg;
    bool ending;
    atomic_uint turn;
    atomic_int busy; /* helpers that have not finished this turn */
} mine = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .begun = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER,
          .threads = 1};

static unsigned wait_for_turn(struct pool *pool, unsigned seen)
{
    for (int i = 0; i < LOOKS; i++)
        if (atomic_load(&pool->turn) != seen)
            return seen + 1;
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->turn) == seen)
        pthread_cond_wait(&pool->begun, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return seen + 1;
}

static void *help(void *arg)
{
    const struct helper *me = arg;
    struct pool *pool = me->pool;
    unsigned turn = 0;
    for (;;) {
        turn = wait_for_turn(pool, turn);
        if (pool->ending)
            return NULL;
        pool->work(me->part, pool->threads, pool->arg);
        if (atomic_fetch_sub(&pool->busy, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void begin_turn(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->busy, pool->threads - 1);
    atomic_fetch_add(&pool->turn, 1);
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(pool_work work, void *arg)
{
    struct pool *pool = &mine;
    if (pool->threads == 1) {
        work(0, 1, arg);
        return;
    }
    pool->work = work;
    pool->arg = arg;
    begin_turn(pool);
    work(0, pool->threads, arg);
    for (int i = 0; i < LOOKS; i++)
        if (atomic_load(&pool->busy) == 0)
            return;
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->busy) > 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

struct items {
    int n;
    pool_item item;
    void *arg;
};

static void run_items(int part, int parts, void *arg)
{
    const struct items *a = arg;
    int from, to;
    pool_share(a->n, 1, part, parts, &from, &to);
    for (int i = from; i < to; i++)
        a->item(i, part, a->arg);
}

void pool_each(int n, pool_item item, void *arg)
{
    pool_run(run_items, &(struct items){n, item, arg});
}

static void end_helpers(struct pool *pool)
{
    pool->ending = true;
    begin_turn(pool);
    for (int i = 1; i < pool->threads; i++)
        pthread_join(pool->helpers[i].thread, NULL);
    free(pool->helpers);
    pool->helpers = NULL;
    pool->ending = false;
    atomic_store(&pool->turn, 0);
    pool->threads = 1;
}

void pool_set(int n)
{
    struct pool *pool = &mine;
    if (pool->helpers)
        end_helpers(pool);
    if (n <= 1)
        return;
    pool->helpers = xcalloc((size_t)n, sizeof(*pool->helpers));
    for (int i = 1; i < n; i++) {
        struct helper *new = &pool->helpers[i];
        *new = (struct helper){.pool = pool, .part = i};
        if (pthread_create(&new->thread, NULL, help, new) != 0)
            break; /* a limit on processes: use the threads that were created */
        pool->threads = i + 1;
    }
}

int pool_threads(void)
{
    return mine.threads;
}
