/* common/duration.c - see duration.h */
#include "common/duration.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    double ms;
} units[] = {{"d", 24 * 3600e3}, {"h", 3600e3}, {"m", 60e3},
             {"min", 60e3},      {"s", 1e3},    {"ms", 1}};

/* "1d12h30m": units from large to small, each at most once; a bare number is seconds. */
static bool with_units(const char *text, double *ms)
{
    const char *end;
    double n, last = HUGE_VAL;
    *ms = 0;
    do {
        if (!number_plain(text, &n, &end))
            return false;
        size_t len = strspn(end, "abcdefghijklmnopqrstuvwxyz"), i = 0;
        if (!*end && last == HUGE_VAL) {
            *ms = n * 1e3;
            return true;
        }
        while (i < ARRAY_LEN(units) &&
               (strlen(units[i].name) != len || memcmp(units[i].name, end, len) != 0))
            i++;
        if (i == ARRAY_LEN(units) || units[i].ms >= last)
            return false;
        last = units[i].ms;
        *ms += n * last;
        text = end + len;
    } while (*text);
    return true;
}

/* "[D-]H:MM:SS", as in all schedulers; the days are Slurm's. */
static bool with_colons(const char *text, double *ms)
{
    unsigned d = 0, h, m, s;
    int used = 0;
    bool days = sscanf(text, "%5u-%2u:%2u:%2u%n", &d, &h, &m, &s, &used) == 4 && used;
    if (!days) {
        d = 0;
        used = 0;
        if (sscanf(text, "%6u:%2u:%2u%n", &h, &m, &s, &used) != 3 || !used)
            return false;
    }
    *ms = (((double)d * 24 + h) * 3600 + m * 60 + s) * 1e3;
    return *text != '-' && !text[used] && m <= 59 && s <= 59 && (!days || h <= 23) &&
           strspn(text, "0123456789:-") == strlen(text);
}

int duration_parse(const char *text, int64_t *ms, struct ddp_err *err)
{
    double value;
    if ((!with_units(text, &value) && !with_colons(text, &value)) || value >= 1e18)
        return err_set(err,
                       "'%.40s' is not a duration: write 90s, 5m, 1h30m, 250ms, 1d12h or "
                       "36:00:00",
                       text);
    *ms = (int64_t)(value + 0.5);
    return 0;
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

int64_t boot_ms(void)
{
    return clock_ns(CLOCK_BOOTTIME) / 1000000;
}

int64_t wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

int64_t now_ms(void)
{
    return now_ns() / 1000000;
}

void sleep_ms(int64_t ms)
{
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&rest, &rest) < 0 && errno == EINTR)
        ;
}
