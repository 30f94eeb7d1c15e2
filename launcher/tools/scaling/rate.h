/* launcher/tools/scaling/rate.h - find a throughput in a program's output
 *
 * Such as "speed  12,345 images/s", "throughput: 3.2e4 tokens/sec". The last one of the
 * output counts; without one the wall time is used.
 */
#ifndef LAUNCHER_TOOLS_SCALING_RATE_H
#define LAUNCHER_TOOLS_SCALING_RATE_H

#include <stdbool.h>

struct rate {
    double value;  /* 0: none found */
    char unit[24]; /* "images/s" */
};

/* Parse one line; a rate in it replaces an earlier one. */
void rate_read(struct rate *r, const char *line);

#endif
