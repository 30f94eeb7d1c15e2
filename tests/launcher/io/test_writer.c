/* A stalled target blocks its writer's thread and nothing else. */
#include "common/duration.h"
#include "common/mem.h"
#include "launcher/io/writer.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* The target of the thread; put() waits while `stalled`. */
static struct {
    atomic_bool stalled, released, asked;
    atomic_int error; /* that put() returns */
    char got[1 << 16];
    atomic_size_t n;
} disk;

static struct loop *loop;
static struct writer *writer;
static int drained, failed;

static int put(void *to, const char *data, size_t size)
{
    disk.asked = true;
    while (disk.stalled)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (disk.n + size <= sizeof disk.got)
        memcpy(disk.got + disk.n, data, size);
    disk.n += size;
    return disk.error;
}

static void release(void *to)
{
    disk.released = true;
}

static void on_drained(void *arg)
{
    drained++;
}

static void on_failed(int error, void *arg)
{
    ck_assert_int_eq(error, EIO);
    failed++;
}

static void setup(void)
{
    struct ddp_err err;
    loop = loop_create(&err);
    ck_assert_ptr_nonnull(loop);
    writer = writer_create(loop, &(struct writer_target){put, release, NULL},
                           &(struct writer_events){on_drained, on_failed, NULL}, &err);
    ck_assert_ptr_nonnull(writer);
}

static void teardown(void)
{
    writer_destroy(writer);
    loop_destroy(loop);
}

static void text(const char *s)
{
    memcpy(writer_reserve(writer, strlen(s)), s, strlen(s));
    writer_commit(writer, strlen(s));
}

static void turn(void)
{
    event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
}

static void turn_until(const int *count)
{
    int64_t end = now_ms() + 10000;
    while (*count == 0 && now_ms() < end)
        event_base_loop(loop_base(loop), EVLOOP_ONCE);
}

FIXTURE(setup, teardown)

TEST(order_is_kept)
{
    for (int i = 0; i < 1000; i++) {
        text(i % 2 ? "b" : "a");
        if (i % 3 == 0)
            turn();
    }
    ck_assert(writer_wait(writer, now_ms() + 10000));
    ck_assert_uint_eq(disk.n, 1000);
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(disk.got[i], i % 2 ? 'b' : 'a');
}

TEST(a_stalled_disk_blocks_no_caller)
{
    disk.stalled = true;
    int64_t began = now_ms();
    text("first");
    turn();
    size_t piece = 64 << 10;
    while (writer_pending(writer) < WRITER_HIGH) {
        memset(writer_reserve(writer, piece), 'x', piece);
        writer_commit(writer, piece);
        turn();
    }
    ck_assert(!writer_finish(writer));
    ck_assert(!writer_wait(writer, now_ms() + 20));
    ck_assert_int_lt(now_ms() - began, 5000);
    ck_assert_int_eq(drained, 0);
    ck_assert_uint_eq(disk.n, 0);
    disk.stalled = false;
    turn_until(&drained);
    ck_assert_int_eq(drained, 1);
    ck_assert(writer_wait(writer, now_ms() + 10000));
    ck_assert_uint_ge(disk.n, WRITER_HIGH);
    ck_assert(writer_finish(writer));
}

/* The owner stops at WRITER_HIGH even if the queue is smaller at the end of the
 * iteration. */
TEST(a_full_queue_reports_when_it_has_drained)
{
    disk.stalled = true;
    size_t piece = 64 << 10;
    while (writer_pending(writer) < WRITER_HIGH) {
        if (writer_pending(writer) + piece >= WRITER_HIGH)
            turn(); /* the last piece is alone in its chunk */
        memset(writer_reserve(writer, piece), 'x', piece);
        writer_commit(writer, piece);
    }
    disk.stalled = false;
    for (int64_t end = now_ms() + 10000;
         writer_pending(writer) > piece && now_ms() < end;)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_uint_eq(writer_pending(writer), piece);
    turn_until(&drained);
    ck_assert_int_eq(drained, 1);
}

TEST(the_end_is_reported_after_the_last_write)
{
    disk.stalled = true;
    text("last");
    ck_assert(!writer_finish(writer));
    disk.stalled = false;
    turn_until(&drained);
    ck_assert_int_eq(drained, 1);
    ck_assert_uint_eq(disk.n, 4);
}

TEST(an_error_is_reported_once)
{
    disk.error = EIO;
    text("a");
    turn_until(&failed);
    text("b");
    ck_assert(writer_wait(writer, now_ms() + 10000));
    ck_assert_int_eq(failed, 1);
    ck_assert_uint_eq(disk.n, 2);
}

TEST(a_stalled_writer_is_abandoned)
{
    disk.stalled = true;
    text("a");
    turn();
    while (!disk.asked) /* until it is in put() */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    int64_t began = now_ms();
    writer_destroy(writer);
    writer = NULL;
    ck_assert_int_lt(now_ms() - began, 5000);
    ck_assert(!disk.released);
    disk.stalled = false;
    for (int64_t end = now_ms() + 10000; !disk.released && now_ms() < end;)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert(disk.released);
}

static atomic_int releases;

static int put_briefly(void *to, const char *data, size_t size)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return 0;
}

static void count_release(void *to)
{
    releases++;
}

/* For the thread sanitizer: the thread may free the writer while it is being destroyed.
 */
TEST(a_writer_may_be_destroyed_while_it_writes)
{
    enum { ROUNDS = 200 };
    struct ddp_err err;
    for (int i = 0; i < ROUNDS; i++) {
        struct writer *w =
            writer_create(loop, &(struct writer_target){put_briefly, count_release, NULL},
                          &(struct writer_events){on_drained, on_failed, NULL}, &err);
        ck_assert_ptr_nonnull(w);
        *writer_reserve(w, 1) = 'x';
        writer_commit(w, 1);
        turn();
        nanosleep(&(struct timespec){.tv_nsec = i * 1000}, NULL);
        writer_destroy(w);
    }
    for (int64_t end = now_ms() + 10000; releases < ROUNDS && now_ms() < end;)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_eq(releases, ROUNDS);
}
