/* launcher/tools/scaling/rate.c - see rate.h */
#include "launcher/tools/scaling/rate.h"

#include "common/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Units of training; bytes and bits are not work done. */
static const char *const units[] = {"images",  "imgs",       "img",       "samples",
                                    "tokens",  "examples",   "sequences", "items",
                                    "steps",   "iterations", "iters",     "it",
                                    "batches", "words",      "frames"};

static bool known(const char *word, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        if (strlen(units[i]) == len && strncasecmp(units[i], word, len) == 0)
            return true;
    }
    return false;
}

/* The number that ends before `end`: "12,345", "3.2e4". False: none. */
static bool number_before(const char *line, const char *end, double *value)
{
    char text[40];
    size_t n = 0;
    const char *start = end;
    while (start > line &&
           (isdigit((unsigned char)start[-1]) || strchr(".,eE+", start[-1])))
        start--;
    while (start < end && !isdigit((unsigned char)*start))
        start++;
    for (; start < end && n < sizeof text - 1; start++) {
        if (*start != ',')
            text[n++] = *start;
    }
    text[n] = '\0';
    char *stop;
    *value = strtod(text, &stop);
    return n > 0 && !*stop && isfinite(*value) && *value > 0;
}

void rate_read(struct rate *r, const char *line)
{
    for (const char *slash = line; (slash = strstr(slash, "/s")); slash += 2) {
        const char *behind = slash + 2 + (strncmp(slash + 2, "ec", 2) == 0 ? 2 : 0);
        if (isalnum((unsigned char)*behind))
            continue;
        const char *word = slash;
        while (word > line && isalpha((unsigned char)word[-1]))
            word--;
        const char *end = word;
        while (end > line && end[-1] == ' ')
            end--;
        double value;
        if (known(word, (size_t)(slash - word)) && number_before(line, end, &value)) {
            r->value = value;
            snprintf(r->unit, sizeof r->unit, "%.*s/s", (int)(slash - word), word);
        }
    }
}
