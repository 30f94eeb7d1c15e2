/* common/number.h - decimal numbers: a text that is one, or that begins with one */
#ifndef COMMON_NUMBER_H
#define COMMON_NUMBER_H

#include <stdbool.h>

/* Is all of `text` a whole number from `min` to `max`? Then it is in `*n`. */
bool number_whole(const char *text, int min, int max, int *n);

/* "1.5" of "1.5h". Parse digits with at most one point, no sign, no exponent and no
 * hexadecimal. `*end` is the rest. False: `text` does not begin with such a number. */
bool number_plain(const char *text, double *n, const char **end);

#endif
