/* worker/config_value.c - see config_value.h */
#include "worker/config_value.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int value_integer(const char *text, long long lo, long long hi, long long *out,
                  struct ddp_err *err)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end == text || *end || errno || *out < lo || *out > hi)
        return hi == LLONG_MAX
                   ? err_set(err, "'%s' is not a whole number of %lld or more", text, lo)
                   : err_set(err, "'%s' is not a whole number from %lld to %lld", text,
                             lo, hi);
    return 0;
}

int value_int(const char *text, int lo, int hi, int *out, struct ddp_err *err)
{
    long long value;
    if (value_integer(text, lo, hi, &value, err) < 0)
        return -1;
    *out = (int)value;
    return 0;
}

int value_real(const char *text, double lo, double hi, double *out, struct ddp_err *err)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= lo && *out <= hi))
        return err_set(err, "'%s' is not a number from %g to %g", text, lo, hi);
    return 0;
}

/* Where `text` stands in `names`, which ends with NULL; -1 with an error that lists them.
 */
static int find_word(const char *text, const char *const *names, struct ddp_err *err)
{
    char list[128] = "";
    size_t used = 0;
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], text) == 0)
            return i;
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                     i > 0 ? ", " : "", names[i]);
    }
    return err_set(err, "'%s' is not one of %s", text, list);
}

int value_model(const char *text, struct model_type **out, struct ddp_err *err)
{
    model_type_free(*out);
    *out = model_type_find(text, err);
    return *out ? 0 : -1;
}

int value_optimizer(const char *text, const struct optim_type **out, struct ddp_err *err)
{
    *out = optim_find(text);
    return *out ? 0 : err_set(err, "'%s' is not one of sgd, adam, adamw, adadelta", text);
}

int value_precision(const char *text, enum precision *out, struct ddp_err *err)
{
    int which = find_word(text, precision_names, err);
    if (which >= 0)
        *out = (enum precision)which;
    return which < 0 ? -1 : 0;
}

/* One of `names`, of which the first leaves the choice to others: NULL. */
int value_choice(const char *text, const char *const *names, const char **out,
                 struct ddp_err *err)
{
    int which = find_word(text, names, err);
    *out = which > 0 ? names[which] : NULL;
    return which < 0 ? -1 : 0;
}

int value_on_nan(const char *text, bool *skip, struct ddp_err *err)
{
    static const char *const names[] = {"stop", "skip", NULL};
    int which = find_word(text, names, err);
    *skip = which == 1;
    return which < 0 ? -1 : 0;
}

int value_timeout(const char *text, int64_t *ms, struct ddp_err *err)
{
    if (duration_parse(text, ms, err) < 0)
        return -1;
    return *ms > 0 ? 0 : err_set(err, "'%s' is no time to wait", text);
}

int value_file(const char *text, const char **out, struct ddp_err *err)
{
    *out = text;
    return *text ? 0 : err_set(err, "'' is not a name");
}

/* "crop", "crop:4"; the number is of pixels around the image */
static int take_crop(const char *word, size_t len, struct augment *out)
{
    enum { PAD = 4 }; /* the usual padding of 32x32 images */
    char number[8] = "";
    if (len == 4 && strncmp(word, "crop", 4) == 0) {
        out->pad = PAD;
        return 0;
    }
    if (len < 6 || len - 5 >= sizeof number || strncmp(word, "crop:", 5) != 0)
        return -1;
    memcpy(number, word + 5, len - 5);
    return value_int(number, 1, AUGMENT_MOST_PAD, &out->pad, NULL);
}

int value_augment(const char *text, struct augment *out, struct ddp_err *err)
{
    *out = (struct augment){0};
    if (strcmp(text, "none") == 0)
        return 0;
    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        if (len == 4 && strncmp(at, "flip", 4) == 0)
            out->flip = true;
        else if (take_crop(at, len, out) < 0)
            return err_set(err,
                           "'%s' is not none, or crop, crop:PIXELS (1 to %d) and flip "
                           "with a comma between them",
                           text, AUGMENT_MOST_PAD);
        at += len;
        if (!*at)
            return 0;
    }
}
