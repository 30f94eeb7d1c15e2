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
/* Monotonic milliseconds that go on while the machine is suspended. */
int64_t boot_ms(void);
/* Wall-clock nanoseconds since 1970. */
int64_t wall_ns(void);

void sleep_ms(int64_t ms); /* a signal does not shorten it */

#endif
