#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/limit.h"

#include <unistd.h>

enum { LIMIT_MS = 600, WAIT_MS = LIMIT_MS / 10, BLOCK_MS = 2 * LIMIT_MS };

static struct loop *loop;
static int passed;

static void on_limit(void *arg)
{
    passed++;
    loop_stop(loop, 0);
}

static void on_block(evutil_socket_t fd, short what, void *arg)
{
    usleep(BLOCK_MS * 1000);
}

/* ms until a limit has passed, during which the loop is blocked `blocks` times. */
static int64_t run(int blocks)
{
    struct ddp_err err;
    loop = loop_create(&err);
    struct limit *limit = limit_create(loop, on_limit, NULL);
    struct event *timers[3];
    int64_t began_ms = now_ms();
    limit_arm(limit, LIMIT_MS);
    for (int i = 0; i < blocks; i++) {
        timers[i] = loop_timer(loop, on_block, NULL);
        loop_arm(timers[i], WAIT_MS / 2);
    }
    passed = 0;
    loop_run(loop);
    int64_t took_ms = now_ms() - began_ms;
    for (int i = 0; i < blocks; i++)
        loop_free(timers[i]);
    limit_destroy(limit);
    loop_destroy(loop);
    ck_assert_int_eq(passed, 1);
    return took_ms;
}

TEST(a_limit_passes_at_its_time)
{
    ck_assert_int_ge(run(0), LIMIT_MS);
}

TEST(time_in_which_this_process_did_not_run_does_not_count)
{
    ck_assert_int_ge(run(1), BLOCK_MS + LIMIT_MS - WAIT_MS);
    ck_assert_int_ge(run(3), 3 * BLOCK_MS + LIMIT_MS - 3 * WAIT_MS);
}

/* A machine that is merely busy does not make limits longer. */
TEST(a_wait_that_is_a_little_late_counts_in_full)
{
    ck_assert_int_eq(limit_count_ms(100, 100), 100);
    ck_assert_int_eq(limit_count_ms(140, 100), 140);
    ck_assert_int_eq(limit_count_ms(160, 100), 100);
    ck_assert_int_eq(limit_count_ms(40, 100), 40); /* what it waited for came first */
}

TEST(a_limit_that_is_stopped_does_not_pass)
{
    struct ddp_err err;
    loop = loop_create(&err);
    struct limit *stopped = limit_create(loop, on_limit, NULL);
    struct limit *other = limit_create(loop, on_limit, NULL);
    passed = 0;
    limit_arm(stopped, LIMIT_MS);
    limit_arm(other, 2 * LIMIT_MS);
    limit_stop(stopped);
    int64_t began_ms = now_ms();
    loop_run(loop);
    ck_assert_int_eq(passed, 1);
    ck_assert_int_ge(now_ms() - began_ms, 2 * LIMIT_MS - 1);
    limit_destroy(stopped);
    limit_destroy(other);
    loop_destroy(loop);
}
