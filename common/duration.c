/* common/duration.c - see duration.h */
#include "common/duration.h"

#include "common/err.h"
#include "common/mem.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int duration_parse(const char *text, int64_t *ms, struct ddp_err *err)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1e3},     {"s", 1e3},    {"ms", 1},         {"m", 60e3},
                 {"min", 60e3}, {"h", 3600e3}, {"d", 24 * 3600e3}};
    char *end;
    bool number = (*text >= '0' && *text <= '9') || *text == '.';
    double value = number ? strtod(text, &end) : -1;
    if (value >= 0 && isfinite(value)) {
        for (size_t i = 0; i < ARRAY_LEN(units); i++) {
            if (strcmp(end, units[i].unit) == 0 && value * units[i].ms < 1e15) {
                *ms = (int64_t)(value * units[i].ms + 0.5);
                return 0;
            }
        }
    }
    return err_set(err, "'%s' is not a duration: write 90, 90s, 5m, 1.5h or 250ms", text);
}

int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t now_ms(void)
{
    return now_ns() / 1000000;
}
