/* tests/common/test_offload.c - see common/offload.h */
#include "common/offload.h"

#include "tests/support/suite.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

enum { ENOUGH_MS = 30000 };

struct sum {
    int a, b, sum;
    sem_t *may; /* NULL: at once */
    atomic_bool *over;
};

static void add(void *copy)
{
    struct sum *s = copy;
    if (s->may)
        sem_wait(s->may);
    s->sum = s->a + s->b;
    if (s->over)
        atomic_store(s->over, true);
}

TEST(a_call_works_on_a_copy_and_gives_it_back)
{
    struct ddp_err err;
    struct sum given = {2, 3, 0, NULL, NULL};
    struct offload *a = offload_begin(add, &given, sizeof given, &err);
    ck_assert_ptr_nonnull(a);
    const struct sum *done = offload_wait(a, ENOUGH_MS);
    ck_assert_ptr_nonnull(done);
    ck_assert_int_eq(done->sum, 5);
    ck_assert_int_eq(given.sum, 0);
    ck_assert_ptr_eq(offload_wait(a, 0), done);
    offload_end(a);
}

TEST(a_call_has_a_deadline)
{
    sem_t may;
    sem_init(&may, 0, 0);
    struct sum given = {2, 3, 0, &may, NULL};
    struct offload *a = offload_begin(add, &given, sizeof given, NULL);
    ck_assert_ptr_null(offload_wait(a, 0));
    ck_assert_ptr_null(offload_wait(a, 2));
    sem_post(&may);
    const struct sum *done = offload_wait(a, ENOUGH_MS);
    ck_assert_ptr_nonnull(done);
    ck_assert_int_eq(done->sum, 5);
    offload_end(a);
    sem_destroy(&may);
}

TEST(an_abandoned_call_ends_by_itself)
{
    static sem_t may;
    static atomic_bool over;
    sem_init(&may, 0, 0);
    struct sum given = {2, 3, 0, &may, &over};
    struct offload *a = offload_begin(add, &given, sizeof given, NULL);
    offload_end(a);
    ck_assert(!atomic_load(&over));
    sem_post(&may);
    for (int ms = 0; !atomic_load(&over) && ms < ENOUGH_MS; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    ck_assert(atomic_load(&over));
    offload_end(NULL);
}

static _Atomic int undone;

static void undo(void *copy)
{
    const struct sum *s = copy;
    undone = s->sum;
}

TEST(what_an_abandoned_call_has_made_is_undone)
{
    static sem_t may;
    sem_init(&may, 0, 1);
    struct sum given = {2, 3, 0, &may, NULL};
    struct offload *a = offload_begin(add, &given, sizeof given, NULL);
    ck_assert_ptr_nonnull(offload_wait(a, ENOUGH_MS));
    offload_abandon(a, undo);
    ck_assert_int_eq(undone, 5);
    given.a = 4;
    a = offload_begin(add, &given, sizeof given, NULL);
    offload_abandon(a, undo);
    ck_assert_int_eq(undone, 5);
    sem_post(&may);
    for (int ms = 0; undone != 7 && ms < ENOUGH_MS; ms++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    ck_assert_int_eq(undone, 7);
}

static pthread_key_t of_thread;

static void on_thread_end(void *gone)
{
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    atomic_store((atomic_bool *)gone, true);
}

static void mark_thread(void *copy)
{
    pthread_setspecific(of_thread, *(atomic_bool **)copy);
}

/* The launcher may fork the local agent next. */
TEST(no_thread_is_left_of_a_call_that_has_returned)
{
    static atomic_bool gone;
    atomic_bool *given = &gone;
    ck_assert_int_eq(pthread_key_create(&of_thread, on_thread_end), 0);
    struct offload *a = offload_begin(mark_thread, &given, sizeof given, NULL);
    ck_assert_ptr_nonnull(offload_wait(a, ENOUGH_MS));
    offload_end(a);
    ck_assert(atomic_load(&gone));
    pthread_key_delete(of_thread);
}
