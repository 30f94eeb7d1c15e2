/* launcher/cli/walltime.c - see walltime.h */
#include "launcher/cli/walltime.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/size.h"

#include <inttypes.h>
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

int walltime_parse(const char *text, int64_t *seconds, struct ddp_err *err)
{
    static const char digits[] = "0123456789";
    int64_t ms;
    if (*text && !text[strspn(text, digits)])
        return err_set(err,
                       "'%.40s' is minutes for Slurm, LSF and Flux, seconds for Grid "
                       "Engine and PBS; write %.20sm, %.20ss or %.20sh",
                       text, text, text, text);
    size_t first = strspn(text, digits);
    if (first > 0 && text[first] == ':' && text[first + 1] &&
        !text[first + 1 + strspn(text + first + 1, digits)])
        return err_set(err,
                       "'%.40s' is hours and minutes for LSF, minutes and seconds for "
                       "the others; write %.20s:00 or 00:%.20s",
                       text, text, text);
    TRY(duration_parse(text, &ms, err));
    *seconds = (ms + 500) / 1000;
    return *seconds >= 1 && *seconds <= LONGEST_S
               ? 0
               : err_set(err, "'%.40s' is not between 1s and 3650d", text);
}

char *walltime_text(enum scheduler scheduler, int64_t seconds)
{
    int64_t h = seconds / HOUR, m = seconds / MINUTE % 60, s = seconds % 60;
    if (scheduler == SCHED_LSF) {
        int64_t minutes = (seconds + 59) / MINUTE;
        return xasprintf("%02" PRId64 ":%02" PRId64, minutes / 60, minutes % 60);
    }
    if (scheduler == SCHED_FLUX)
        return xasprintf("%" PRId64 "s", seconds);
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
    int64_t bytes;
    if (*text && !text[strspn(text, "0123456789.")])
        return err_set(err, "'%.40s' has no unit; write %.20sM or %.20sG", text, text,
                       text);
    TRY(size_parse(text, &bytes, err));
    if (bytes < 1 << 20)
        return err_set(err, "'%.40s' is less than 1M", text);
    *mb = (bytes + (1 << 19)) >> 20;
    return 0;
}
