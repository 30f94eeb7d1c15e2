/* launcher/scaling/rate.h - how fast a program says it was
 *
 * Programs tell people: "speed  12,345 images/s", "throughput: 3.2e4 tokens/sec". The
 * last such number of the output counts. Without one the time of the run does.
 */
#ifndef LAUNCHER_SCALING_RATE_H
#define LAUNCHER_SCALING_RATE_H

#include <stdbool.h>

struct rate {
    double value;  /* 0: none was said */
    char unit[24]; /* "images/s" */
};

/* Looks at one line; a rate in it replaces that of earlier ones. */
void rate_read(struct rate *r, const char *line);

#endif
