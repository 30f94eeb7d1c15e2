/* worker/config_value.c - see config_value.h */
#include "worker/config_value.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int value_on(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    *(bool *)to = true;
    return 0;
}

int value_off(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    *(bool *)to = false;
    return 0;
}

int value_int(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    return number_whole(text, (int)o->lo, (int)o->hi, to)
               ? 0
               : err_set(err, "'%s' is not a whole number from %.0f to %.0f", text, o->lo,
                         o->hi);
}

int value_count(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)value < o->lo)
        return err_set(err, "'%s' is not a whole number of %.0f or more", text, o->lo);
    *(uint64_t *)to = (uint64_t)value;
    return 0;
}

int value_real(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    char *end;
    double *out = to;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= o->lo && *out <= o->hi))
        return err_set(err, "'%s' is not a number from %g to %g", text, o->lo, o->hi);
    return 0;
}

int value_float(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    double value;
    TRY(value_real(o, text, &value, err));
    *(float *)to = (float)value;
    return 0;
}

int value_mib(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    double value;
    TRY(value_real(o, text, &value, err));
    *(size_t *)to = (size_t)(value * (1 << 20));
    return 0;
}

/* Where `text` stands in `names`, which ends with NULL; -1 with an error that lists them.
 */
static int find_word(const char *text, const char *const *names, struct ddp_err *err)
{
    OWNED char *list = NULL;
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], text) == 0)
            return i;
        xappendf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return err_set(err, "'%s' is not one of %s", text, list);
}

int value_word(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    int which = find_word(text, o->words, err);
    if (which >= 0)
        *(unsigned *)to = (unsigned)which;
    return which < 0 ? -1 : 0;
}

int value_flag(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    int which = find_word(text, o->words, err);
    *(bool *)to = which == 1;
    return which < 0 ? -1 : 0;
}

int value_choice(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    int which = find_word(text, o->words, err);
    *(const char **)to = which > 0 ? o->words[which] : NULL;
    return which < 0 ? -1 : 0;
}

int value_text(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    *(const char **)to = text;
    return *text ? 0 : err_set(err, "it must not be empty");
}

int value_timeout(const struct setting *o, const char *text, void *to,
                  struct ddp_err *err)
{
    int64_t *ms = to;
    TRY(duration_parse(text, ms, err));
    return *ms > 0 ? 0 : err_set(err, "'%s' is no time to wait", text);
}

int value_model(const struct setting *o, const char *text, void *to, struct ddp_err *err)
{
    struct model_type **type = to;
    model_type_free(*type);
    *type = model_type_find(text, err);
    return *type ? 0 : -1;
}

int value_optimizer(const struct setting *o, const char *text, void *to,
                    struct ddp_err *err)
{
    const struct optim_type *type = *(const struct optim_type **)to = optim_find(text);
    return type ? 0 : err_set(err, "'%s' is not one of sgd, adam, adamw, adadelta", text);
}

int value_augment(const struct setting *o, const char *text, void *to,
                  struct ddp_err *err)
{
    enum { PAD = 4 }; /* the usual padding of 32x32 images */
    struct augment *out = to;
    char words[64], *rest = words, *word;
    bool good = snprintf(words, sizeof words, "%s", text) < (int)sizeof words;
    *out = (struct augment){0};
    if (strcmp(text, "none") == 0)
        return 0;
    while (good && (word = strsep(&rest, ",")))
        if (strcmp(word, "flip") == 0)
            out->flip = true;
        else if (strcmp(word, "crop") == 0)
            out->pad = PAD;
        else
            good = strncmp(word, "crop:", 5) == 0 &&
                   number_whole(word + 5, 1, AUGMENT_MOST_PAD, &out->pad);
    return good
               ? 0
               : err_set(err,
                         "'%s' is not none, or crop, crop:PIXELS (1 to %d) and flip with "
                         "a comma between them",
                         text, AUGMENT_MOST_PAD);
}
