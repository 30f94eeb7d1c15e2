/* common/number.h - decimal numbers in texts: read, and written for people */
#ifndef COMMON_NUMBER_H
#define COMMON_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* Is all of `text` a whole number from `min` to `max`? Then it is in `*n`. */
bool number_whole(const char *text, int min, int max, int *n);

/* "1.5" of "1.5h". Parse digits with at most one point, no sign, no exponent and no
 * hexadecimal. `*end` is the rest. False: `text` does not begin with such a number. */
bool number_plain(const char *text, double *n, const char **end);

/* 1234567 as "1,234,567" */
struct number_text {
    char text[32];
};
struct number_text number_grouped(uint64_t n);

#endif
