/* worker/optim/schedule.c - the learning rate over time; see optim.h */
#include "worker/optim/optim.h"

#include "common/err.h"
#include "common/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"constant", "step", "cosine", "linear"};

int schedule_parse(const char *text, struct schedule *out, struct ddp_err *err)
{
    size_t len = strcspn(text, ":");
    *out = (struct schedule){.warmup = out->warmup};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strlen(names[i]) != len || memcmp(names[i], text, len) != 0)
            continue;
        out->kind = (enum schedule_kind)i;
        out->factor = out->kind == SCHEDULE_STEP ? 0.7 : 0;
        if (text[len] == '\0')
            return 0;
        if (out->kind == SCHEDULE_CONSTANT)
            return err_set(err, "'%s' takes no number", names[i]);
        char *end;
        out->factor = strtod(text + len + 1, &end);
        if (end == text + len + 1 || *end || !(out->factor > 0 && out->factor <= 1))
            return err_set(err, "'%s' is not a factor above 0 and up to 1",
                           text + len + 1);
        return 0;
    }
    return err_set(
        err, "'%s' is not one of constant, step:FACTOR, cosine:FACTOR, linear:FACTOR",
        text);
}

static double over_time(const struct schedule *s, double at, double part)
{
    part = part < 1 ? part : 1;
    switch (s->kind) {
    case SCHEDULE_STEP:
        return pow(s->factor, floor(at));
    case SCHEDULE_COSINE:
        return s->factor + (1 - s->factor) * 0.5 * (1 + cos(M_PI * part));
    case SCHEDULE_LINEAR:
        return s->factor + (1 - s->factor) * (1 - part);
    case SCHEDULE_CONSTANT:
        break;
    }
    return 1;
}

double schedule_factor(const struct schedule *s, double at, double part, uint64_t steps)
{
    double warm = steps < s->warmup ? (double)(steps + 1) / (double)s->warmup : 1;
    return warm * over_time(s, at, part);
}
