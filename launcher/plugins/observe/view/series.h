/* launcher/plugins/observe/view/series.h - numbers that a program prints, over time
 *
 * A line with "loss 0.25", "'loss': '0.25'" or "loss=0.25" adds a point to the series
 * "loss". Two words in front of a number are one name ("test loss 0.3": test_loss), "step
 * 20/100" is progress, too, and "512 images/s" the series "images/s".
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_VIEW_SERIES_H
#define LAUNCHER_PLUGINS_OBSERVE_VIEW_SERIES_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

struct series;

/* `pattern`: an extended regular expression; lines of any rank that match are read. NULL:
 * lines of rank 0 that contain "loss". */
struct series *series_create(const char *pattern, struct ddp_err *err);
void series_destroy(struct series *s);

/* `t` is in seconds since the start. If several ranks print a name, the lowest counts. */
void series_line(struct series *s, size_t rank, const char *line, size_t size, double t);
void series_add(struct series *s, size_t rank, const char *name, double t, double value);

/* In order of their first point. `*name` is borrowed; false: there is no `i`th. */
struct point {
    double t, value;
};
bool series_get(const struct series *s, size_t i, const char **name,
                const struct point **points, size_t *npoints);

#endif
