/* common/refusals.h - log rejected connections, at most one line a minute */
#ifndef COMMON_REFUSALS_H
#define COMMON_REFUSALS_H

#include <stdint.h>
#include <sys/socket.h>

struct refusals {
    int64_t next_ms; /* monotonic: earliest time of the next line */
    unsigned held;   /* refused since the last line */
};

/* "refused a connection from ADDR to WHAT: WHY", or NULL when a line was returned within
 * the last minute. The caller logs and frees it. */
char *refusals_line(struct refusals *r, const struct sockaddr *from, const char *what,
                    const char *why);

#endif
