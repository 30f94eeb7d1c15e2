/* common/refusals.h - one line a minute about connections that were refused
 *
 * A stranger may connect as often as it likes: the user hears of it, but not each time.
 */
#ifndef COMMON_REFUSALS_H
#define COMMON_REFUSALS_H

#include <stdint.h>
#include <sys/socket.h>

struct refusals {
    int64_t next_ms; /* monotonic: no line before */
    unsigned held;   /* refused since the last line */
};

/* "refused a connection from ADDR to WHAT: WHY", or NULL when a line was returned within
 * the last minute. The caller logs and frees it. */
char *refusals_line(struct refusals *r, const struct sockaddr *from, const char *what,
                    const char *why);

#endif
