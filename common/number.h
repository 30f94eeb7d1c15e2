/* common/number.h - decimal numbers inside a text, such as "1.5" of "1.5h" */
#ifndef COMMON_NUMBER_H
#define COMMON_NUMBER_H

#include <stdbool.h>

/* Parse digits with at most one point, no sign, no exponent and no hexadecimal. `*end` is
 * the rest. False: `text` does not begin with such a number. */
bool number_plain(const char *text, double *n, const char **end);

#endif
