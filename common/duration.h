/* common/duration.h - durations, the monotonic clock for deadlines, and the wall clock */
#ifndef COMMON_DURATION_H
#define COMMON_DURATION_H

#include "include/ddprun/err.h"

#include <stdint.h>

/* "90", "90s", "5m", "1.5h", "250ms", "1h30m", "1d12h", "36:00:00", "1-12:00:00" to
 * milliseconds; a bare number is seconds. Negative, empty or trailing text: an error. */
int duration_parse(const char *text, int64_t *ms, struct ddp_err *err);

/* Monotonic milliseconds and nanoseconds. */
int64_t now_ms(void);
int64_t now_ns(void);
/* What a wait of `asked_ms` that took `took_ms` counts where a limit counts only time in
 * which this process ran (common/limit.h). */
static inline int64_t limit_count_ms(int64_t took_ms, int64_t asked_ms)
{
    return took_ms > asked_ms + asked_ms / 2 ? asked_ms : took_ms;
}
/* After a wait of `asked_ms` since `began_ms`: moves a deadline by what does not count.
 */
static inline void limit_extend(int64_t *deadline_ms, int64_t began_ms, int64_t asked_ms)
{
    int64_t took = now_ms() - began_ms;
    *deadline_ms += took - limit_count_ms(took, asked_ms);
}
/* Monotonic milliseconds that go on while the machine is suspended. */
int64_t boot_ms(void);
/* Wall-clock nanoseconds since 1970. */
int64_t wall_ns(void);

void sleep_ms(int64_t ms); /* a signal does not shorten it */

#endif
