#include "tests/support/suite.h"

#include "common/duration.h"
#include "launcher/link/heartbeat.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 500, INTERVAL_MS = TIMEOUT_MS / 10 };

static struct loop *loop;
static struct heartbeat *heartbeat;
static struct silence silence;
static int beats, late_beats, blocked_at;
static int64_t last_ms, first_ms, heard_ms, speaks_until_ms;
static bool lost;
static time_t asleep_s; /* how long this machine was suspended */

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, ts);
    ts->tv_sec += clock == CLOCK_BOOTTIME ? asleep_s : 0;
    return rc;
}

/* A peer that is heard before each of the first beats, and then no more. */
static void on_beat(void *arg)
{
    int64_t now = now_ms();
    if (now - last_ms > INTERVAL_MS + INTERVAL_MS / 4)
        late_beats++;
    last_ms = now;
    if (now < speaks_until_ms)
        heard_ms = now;
    lost = heartbeat_silent(heartbeat, &silence, heard_ms);
    if (silence.silent_ms == 0) {
        first_ms = now;
        beats = late_beats = 0;
    } else if (++beats == blocked_at) {
        usleep(2 * TIMEOUT_MS * 1000);
    }
    if (lost)
        loop_stop(loop, 0);
}

/* Until it is lost. */
static void run(int64_t speaks_ms, int block)
{
    struct ddp_err err;
    loop = loop_create(&err);
    blocked_at = block;
    int64_t began_ms = last_ms = heard_ms = now_ms();
    speaks_until_ms = heard_ms + speaks_ms;
    heartbeat = heartbeat_create(loop, TIMEOUT_MS, on_beat, NULL);
    loop_run(loop);
    ck_assert_int_le(heartbeat_late_ms(heartbeat), now_ms() - began_ms);
    heartbeat_destroy(heartbeat);
    loop_destroy(loop);
    ck_assert(lost);
}

/* A beat counts at most 1.5 intervals. A late one counts less than its time, and so does
 * the short one after it. */
static void check_beats(void)
{
    ck_assert_int_ge(beats, 7);
    ck_assert_int_le(beats, 11 + 2 * late_beats);
}

TEST(another_timeout_is_not_late)
{
    struct ddp_err err;
    loop = loop_create(&err);
    heartbeat = heartbeat_create(loop, 60 * 1000, on_beat, NULL);
    usleep(2 * TIMEOUT_MS * 1000); /* less than its interval and the tolerance */
    heartbeat_set_timeout(heartbeat, TIMEOUT_MS);
    ck_assert_int_eq(heartbeat_late_ms(heartbeat), 0);
    heartbeat_destroy(heartbeat);
    loop_destroy(loop);
}

TEST(a_machine_that_was_suspended_is_late)
{
    struct ddp_err err;
    loop = loop_create(&err);
    heartbeat = heartbeat_create(loop, TIMEOUT_MS, on_beat, NULL);
    asleep_s = 600;
    ck_assert_int_ge(heartbeat_late_ms(heartbeat), 599 * 1000);
    heartbeat_destroy(heartbeat);
    loop_destroy(loop);
}

TEST(a_silent_peer_is_lost_at_the_timeout)
{
    run(0, 0);
    ck_assert_int_ge(last_ms - first_ms, TIMEOUT_MS - INTERVAL_MS);
    check_beats();
}

TEST(a_peer_that_speaks_is_not_lost)
{
    run(2 * TIMEOUT_MS, 0);
    ck_assert_int_ge(last_ms, speaks_until_ms);
    ck_assert_int_ge(last_ms - heard_ms, TIMEOUT_MS - INTERVAL_MS);
}

TEST(time_in_which_this_process_did_not_run_is_not_counted)
{
    run(0, 3);
    ck_assert_int_ge(last_ms - first_ms, 2 * TIMEOUT_MS + TIMEOUT_MS / 2);
}

TEST(a_timeout_that_is_changed_counts_at_once)
{
    struct ddp_err err;
    loop = loop_create(&err);
    heartbeat = heartbeat_create(loop, NODE_TIMEOUT_MS, on_beat, NULL);
    heartbeat_set_timeout(heartbeat, TIMEOUT_MS);
    heard_ms = last_ms = now_ms();
    loop_run(loop);
    ck_assert(lost);
    check_beats();
    heartbeat_destroy(heartbeat);
    loop_destroy(loop);
}
