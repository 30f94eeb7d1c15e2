/* launcher/script/walltime.c - see walltime.h */
#include "launcher/script/walltime.h"

#include "common/err.h"
#include "common/mem.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MINUTE    60
#define HOUR      (60 * MINUTE)
#define DAY       (24 * HOUR)
#define LONGEST_S ((int64_t)10 * 365 * DAY)

static const struct {
    char letter;
    int seconds;
} units[] = {{'d', DAY}, {'h', HOUR}, {'m', MINUTE}, {'s', 1}};

/* A plain decimal number: no exponent, no hexadecimal. False: there is none. */
static bool plain_number(const char *text, double *n, const char **end)
{
    size_t len = strspn(text, "0123456789.");
    char *stop;
    *n = strtod(text, &stop);
    *end = text + len;
    return isdigit((unsigned char)*text) && stop == *end;
}

/* "1d12h30m": units from large to small, each at most once. */
static bool with_units(const char *text, double *seconds)
{
    size_t next = 0;
    *seconds = 0;
    while (*text) {
        const char *end;
        double n;
        if (!plain_number(text, &n, &end))
            return false;
        while (next < ARRAY_LEN(units) && units[next].letter != *end)
            next++;
        if (next == ARRAY_LEN(units))
            return false;
        *seconds += n * units[next++].seconds;
        text = end + 1;
    }
    return true;
}

/* "[D-]H:M:S", which all four schedulers read alike, but for Slurm's days. */
static bool with_colons(const char *text, double *seconds)
{
    unsigned d = 0, h, m, s;
    int used = 0;
    if (sscanf(text, "%5u-%2u:%2u:%2u%n", &d, &h, &m, &s, &used) == 4 && !text[used] &&
        h > 23)
        return false;
    if (!used || text[used]) {
        d = 0;
        used = 0;
        if (sscanf(text, "%6u:%2u:%2u%n", &h, &m, &s, &used) != 3)
            return false;
    }
    if (!used || text[used] || m > 59 || s > 59)
        return false;
    *seconds = (double)d * DAY + (double)h * HOUR + m * MINUTE + s;
    return true;
}

int walltime_parse(const char *text, int64_t *seconds, struct ddp_err *err)
{
    static const char digits[] = "0123456789";
    double s;
    if (*text && !text[strspn(text, digits)])
        return err_set(err,
                       "'%.40s' is minutes for Slurm and LSF, seconds for Grid Engine "
                       "and PBS; write %.20sm, %.20ss or %.20sh",
                       text, text, text, text);
    size_t first = strspn(text, digits);
    if (first > 0 && text[first] == ':' && text[first + 1] &&
        !text[first + 1 + strspn(text + first + 1, digits)])
        return err_set(err,
                       "'%.40s' is hours and minutes for LSF, minutes and seconds for "
                       "the others; write %.20s:00 or 00:%.20s",
                       text, text, text);
    if (!with_units(text, &s) && !with_colons(text, &s))
        return err_set(err, "'%.40s' is no time; write 90m, 2h, 1d12h or 36:00:00", text);
    if (!(s >= 1 && s <= (double)LONGEST_S))
        return err_set(err, "'%.40s' is not between 1s and 3650d", text);
    *seconds = (int64_t)llround(s);
    return 0;
}

char *walltime_text(enum scheduler scheduler, int64_t seconds)
{
    int64_t h = seconds / HOUR, m = seconds / MINUTE % 60, s = seconds % 60;
    if (scheduler == SCHED_LSF) {
        int64_t minutes = (seconds + 59) / MINUTE;
        return xasprintf("%02" PRId64 ":%02" PRId64, minutes / 60, minutes % 60);
    }
    if (scheduler == SCHED_SLURM && h >= 24)
        return xasprintf("%" PRId64 "-%02" PRId64 ":%02" PRId64 ":%02" PRId64, h / 24,
                         h % 24, m, s);
    return xasprintf("%02" PRId64 ":%02" PRId64 ":%02" PRId64, h, m, s);
}

void walltime_say(int64_t seconds, char *out, size_t size)
{
    size_t n = 0;
    *out = '\0';
    for (size_t i = 0; i < ARRAY_LEN(units) && n < size; i++) {
        int64_t k = seconds / units[i].seconds;
        if (k > 0)
            n += (size_t)snprintf(out + n, size - n, "%" PRId64 "%c", k, units[i].letter);
        seconds -= k * units[i].seconds;
    }
}

int memory_parse(const char *text, int64_t *mb, struct ddp_err *err)
{
    static const char letters[] = "MGT";
    const char *end;
    double n;
    const char *unit = plain_number(text, &n, &end) && *end
                           ? strchr(letters, toupper((unsigned char)*end))
                           : NULL;
    if (unit)
        end++;
    if (!unit ||
        (strcmp(end, "") != 0 && strcmp(end, "B") != 0 && strcmp(end, "iB") != 0))
        return err_set(err, "'%.40s' is no size; write 512M, 64G or 1.5T", text);
    for (; unit > letters; unit--)
        n *= 1024;
    if (!(n >= 1 && n < 1e12))
        return err_set(err, "'%.40s' is not between 1M and 900000T", text);
    *mb = (int64_t)llround(n);
    return 0;
}
