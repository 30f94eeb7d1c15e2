/* common/number.c - see number.h */
#include "common/number.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool number_whole(const char *text, int min, int max, int *n)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max)
        return false;
    *n = (int)value;
    return true;
}

bool number_plain(const char *text, double *n, const char **end)
{
    size_t len = strspn(text, "0123456789.");
    char *stop, digits[64];
    *end = text + len;
    if (len == 0 || len >= sizeof digits || (len == 1 && *text == '.'))
        return false;
    memcpy(digits, text, len);
    digits[len] = '\0';
    *n = strtod(digits, &stop);
    return *stop == '\0';
}

struct number_text number_grouped(uint64_t n)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n);
    struct number_text out = {""};
    char *to = out.text;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    return out;
}
