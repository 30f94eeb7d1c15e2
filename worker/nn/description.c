/* worker/nn/description.c - see description.h
 *
 * "NAME = VALUE" is a setting of the model; every other line is a layer: "NAME KIND",
 * then "ATTRIBUTE=VALUE" and flags. '#' begins a comment. What fits together is checked
 * where the model is built, with the shapes of the data known (build.c).
 */
#include "worker/nn/description.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"
#include "worker/kernels/rng.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r"

struct reader {
    const char *where;
    int line;
    struct model_type *type;
    struct layer_spec *layers; /* owned by `type` */
    int n;
    struct ddp_err *err;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct reader *r,
                                                        const char *format, ...)
{
    char why[400];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return err_set(r->err, "%s:%d: %s", r->where, r->line, why);
}

static int read_int(const struct reader *r, const char *name, const char *text, int least,
                    int *out)
{
    enum { MOST = 1 << 24 };
    return number_whole(text, least, MOST, out)
               ? 0
               : refuse(r, "%s takes a whole number from %d to %d, not '%s'", name, least,
                        MOST, text);
}

/* ---- settings ---- */

static int read_setting(struct reader *r, const char *name, const char *value)
{
    static const char *const tasks[] = {[TASK_CLASSIFY] = "classify",
                                        [TASK_REGRESS] = "regress",
                                        [TASK_TOKENS] = "tokens"};
    if (strcmp(name, "context") == 0)
        return read_int(r, name, value, 1, &r->type->context);
    if (strcmp(name, "vocabulary") == 0)
        return read_int(r, name, value, 1, &r->type->vocabulary);
    if (strcmp(name, "optimizer") == 0) {
        free(r->type->optimizer);
        r->type->optimizer = xstrdup(value);
        return 0;
    }
    if (strcmp(name, "task") != 0)
        return refuse(
            r, "no setting '%s'; there are task, optimizer, context, vocabulary", name);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        if (strcmp(tasks[i], value) == 0) {
            r->type->task = (enum task)i;
            return 0;
        }
    return refuse(r, "task is classify, regress or tokens, not '%s'", value);
}

/* ---- layers ---- */

/* `takes`: its attributes, separated by blanks; `needs`: the required ones. */
static const struct {
    const char *name;
    enum layer_kind kind;
    const char *takes, *needs;
} kinds[] = {
    {"conv", LAYER_CONV, " outputs size stride pad bias relu pool dropout from ",
     " outputs size "},
    {"linear", LAYER_LINEAR, " outputs relu dropout ", " "},
    {"norm", LAYER_NORM, " relu add ", " "},
    {"mean", LAYER_MEAN, " ", " "},
    {"embed", LAYER_EMBED, " outputs ", " outputs "},
    {"layer_norm", LAYER_LAYER_NORM, " ", " "},
    {"dense", LAYER_DENSE, " outputs add ", " outputs "},
    {"gelu", LAYER_GELU, " ", " "},
    {"attention", LAYER_ATTENTION, " heads ", " heads "},
};

static bool listed(const char *list, const char *word)
{
    char between[40];
    snprintf(between, sizeof between, " %s ", word);
    return strstr(list, between) != NULL;
}

/* The number of layers back to NAME; 0: no earlier layer has that name. */
static int find_layer(const struct reader *r, const char *name)
{
    int back = 1;
    while (back <= r->n && strcmp(r->layers[r->n - back].name, name) != 0)
        back++;
    return back <= r->n ? back : 0;
}

static int read_layer_name(const struct reader *r, const char *name, int *back)
{
    *back = find_layer(r, name);
    return *back ? 0 : refuse(r, "no layer '%s' is before this one", name);
}

static int read_attribute(struct reader *r, struct layer_spec *l, const char *name,
                          const char *value)
{
    const struct {
        const char *name;
        int *to, least;
    } numbers[] = {{"outputs", &l->outputs, 1},
                   {"size", &l->size, 1},
                   {"heads", &l->size, 1},
                   {"stride", &l->stride, 1},
                   {"pad", &l->pad, 0}};
    const struct {
        const char *name;
        bool *to, set;
    } flags[] = {
        {"bias", &l->bare, false}, {"relu", &l->relu, true}, {"pool", &l->pool, true}};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (strcmp(flags[i].name, name) == 0) {
            *flags[i].to = flags[i].set;
            return value ? refuse(r, "'%s' takes no value", name) : 0;
        }
    if (!value)
        return refuse(r, "'%s' takes a value: %s=...", name, name);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (strcmp(numbers[i].name, name) == 0)
            return read_int(r, name, value, numbers[i].least, numbers[i].to);
    if (strcmp(name, "from") == 0)
        return read_layer_name(r, value, &l->from);
    if (strcmp(name, "add") == 0)
        return read_layer_name(r, value, &l->shortcut);
    char *end;
    l->dropout = strtof(value, &end);
    if (end == value || *end || !(l->dropout >= 0 && l->dropout < 1))
        return refuse(r, "dropout takes a number from 0 to below 1, not '%s'", value);
    return 0;
}

static int unknown_kind(const struct reader *r, const char *kind)
{
    char names[200] = "";
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(kinds) && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "",
                              kinds[i].name);
    return refuse(r, "no kind of layers '%s'; there are %s", kind, names);
}

static int read_layer(struct reader *r, char *name, const char *kind, char *rest)
{
    size_t k = 0;
    while (k < ARRAY_LEN(kinds) && strcmp(kinds[k].name, kind) != 0)
        k++;
    if (k == ARRAY_LEN(kinds))
        return unknown_kind(r, kind);
    if (find_layer(r, name))
        return refuse(r, "there is a layer '%s' already", name);
    struct layer_spec *l = &r->layers[r->n];
    *l = (struct layer_spec){kinds[k].kind, .bare = kinds[k].kind == LAYER_CONV};
    char seen[200] = " ", *next;
    for (char *word = strtok_r(rest, BLANKS, &next); word;
         word = strtok_r(NULL, BLANKS, &next)) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        if (!listed(kinds[k].takes, word))
            return refuse(r, "%s layers have no '%s'; theirs are:%s", kind, word,
                          kinds[k].takes[1] ? kinds[k].takes : " none");
        if (listed(seen, word))
            return refuse(r, "'%s' is there twice", word);
        snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s ", word);
        if (read_attribute(r, l, word, value) < 0)
            return -1;
    }
    for (const char *at = kinds[k].needs + 1; *at; at += strcspn(at, " ") + 1) {
        char word[40];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " "), at);
        if (!listed(seen, word))
            return refuse(r, "%s layers need %s=...", kind, word);
    }
    l->name = xstrdup(name);
    r->layers[++r->n] = (struct layer_spec){LAYER_END};
    return 0;
}

static int read_line(struct reader *r, char *line)
{
    char *rest, *first = strtok_r(line, BLANKS, &rest);
    char *second = first ? strtok_r(NULL, BLANKS, &rest) : NULL;
    if (!first)
        return 0;
    if (!second)
        return refuse(r, "after '%s' its kind is missing", first);
    if (strcmp(second, "=") != 0)
        return read_layer(r, first, second, rest);
    char *value = strtok_r(NULL, BLANKS, &rest);
    if (!value || strtok_r(NULL, BLANKS, &rest))
        return refuse(r, "%s = takes one value", first);
    return read_setting(r, first, value);
}

void model_type_free(struct model_type *type)
{
    if (!type)
        return;
    for (struct layer_spec *l = type->layers; l->kind != LAYER_END; l++)
        free(l->name);
    free(type->layers);
    free(type->optimizer);
    free(type->name);
    free(type);
}

struct model_type *description_read(const char *name, const char *where, const char *text,
                                    struct ddp_err *err)
{
    char *copy = xstrdup(text), *next = copy, *line;
    size_t lines = 1;
    struct model_type *type = xcalloc(1, sizeof *type);
    for (const char *c = text; *c; c++) {
        lines += *c == '\n';
        type->checksum = rng_mix(type->checksum ^ (unsigned char)*c);
    }
    struct reader r = {.where = where, .type = type, .err = err};
    type->layers = r.layers = xcalloc(lines + 1, sizeof *r.layers);
    type->name = xstrdup(name);
    int rc = 0;
    while (rc == 0 && (line = strsep(&next, "\n"))) {
        r.line++;
        line[strcspn(line, "#")] = '\0';
        rc = read_line(&r, line);
    }
    free(copy);
    if (rc == 0 && r.n == 0)
        rc = err_set(err, "'%s' describes no layers", where);
    if (rc == 0 && !type->optimizer)
        rc = err_set(err, "'%s' names no optimizer: optimizer = adam", where);
    if (rc == 0 && type->task == TASK_TOKENS && !(type->context && type->vocabulary))
        rc = err_set(err, "'%s' has tokens, and no context = N or vocabulary = N", where);
    if (rc == 0)
        return type;
    model_type_free(type);
    return NULL;
}
