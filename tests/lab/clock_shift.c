/* tests/lab/clock_shift.c - a host whose time of day is wrong: for LD_PRELOAD
 *
 * The lab's hosts share one clock. What a process sees of it is moved by so many seconds
 * as DDPRUN_TEST_CLOCK_SHIFT says; the monotonic clock stays.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                         struct timespec *ts)
{
    const char *shift = getenv("DDPRUN_TEST_CLOCK_SHIFT");
    int rc = (int)syscall(SYS_clock_gettime, clock, ts);
    if (rc == 0 && clock == CLOCK_REALTIME && shift)
        ts->tv_sec += atol(shift);
    return rc;
}
