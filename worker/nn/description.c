/* worker/nn/description.c - reads a model that is a text, with a line for each layer
 * (doc/models.md)
 *
 * "NAME = VALUE" is a setting of the model, "$NAME = VALUE" a size, which later lines
 * use; "repeat N" and "end" enclose lines that are read N times; every other line is a
 * layer: "NAME KIND", then "ATTRIBUTE=VALUE" and flags. '#' begins a comment. What fits
 * together is checked where the model is built, with the shapes of the data known
 * (build.c).
 */
#include "worker/nn/model.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/strv.h"
#include "common/utf8.h"
#include "worker/kernels/rng.h"

#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS          " \t\r"
#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

struct reader {
    int line;
    struct model_type *type;
    int n;                    /* layers of `type` so far */
    struct strv given, sizes; /* owned, NAME=VALUE: with the model's name; of the text */
    int repeat, times, i;     /* the line of `repeat`, 0: outside; rounds, and this one */
    struct ddp_err *err;
};

int description_refuse(const struct model_type *type, int line, struct ddp_err *err,
                       const char *format, ...)
{
    char why[400];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return err_set(err, "%s:%d: %s", type->where, line, why);
}

#define refuse(r, ...) description_refuse((r)->type, (r)->line, (r)->err, __VA_ARGS__)

enum { MOST = 1 << 24, LAYERS = 10000 };

/* A number, or several with '*' and '/' between them, from left to right; else -1. */
static long compute(const char *text)
{
    long value = 1;
    for (char op = '*';; op = *text++) {
        char *end;
        long n = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : -1;
        if (n < 0 || n > MOST || (op == '/' && n == 0))
            return -1;
        value = op == '*' ? value * n : value / n;
        text = end;
        if (!*text || value > LONG_MAX / MOST || !strchr("*/", *text))
            return *text ? -1 : value;
    }
}

static int read_int(const struct reader *r, const char *name, const char *text, int least,
                    int most, int *out)
{
    long value = compute(text);
    if (value < least || value > most)
        return refuse(r, "%s takes a whole number from %d to %d, not '%s'", name, least,
                      most, text);
    *out = (int)value;
    return 0;
}

/* ---- sizes ---- */

/* "layers=4,width=64", after the model's name. */
static int read_given(struct reader *r, const char *text)
{
    for (size_t n; *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        size_t len = strcspn(text, "=,");
        if (len == 0 || n < len + 2)
            return err_set(r->err, "model '%s': '%.*s' is not NAME=VALUE", r->type->name,
                           (int)n, text);
        OWNED char *name = xstrndup(text, len),
                   *value = xstrndup(text + len + 1, n - len - 1);
        strv_env_set(&r->given, name, value);
    }
    return 0;
}

static int check_given(const struct reader *r)
{
    OWNED char *names = NULL;
    for (size_t i = 0; i < r->sizes.n; i++)
        xappendf(&names, " %.*s", (int)strcspn(r->sizes.v[i], "="), r->sizes.v[i]);
    for (size_t i = 0; i < r->given.n; i++) {
        OWNED char *name = xstrndup(r->given.v[i], strcspn(r->given.v[i], "="));
        if (!strv_env_get(&r->sizes, name))
            return err_set(r->err, "model '%s' has no size '%s'; there are%s",
                           r->type->name, name, names ? names : " none");
    }
    return 0;
}

/* "$NAME = VALUE", or the value that was given; computed if it is a product. */
static int define(struct reader *r, const char *name, const char *value)
{
    enum { LONGEST = 60 };
    char number[16];
    int n = 0;
    if (!*name || name[strspn(name, NAME_CHARACTERS)])
        return refuse(r, "the name of a size has letters, digits and '_', not '%s'",
                      name);
    const char *given = strv_env_get(&r->given, name);
    value = given ? given : value;
    if (strlen(value) > LONGEST)
        return refuse(r, "the value of $%s is too long", name);
    if (strpbrk(value, "*/")) {
        TRY(read_int(r, name, value, 0, MOST, &n));
        snprintf(number, sizeof number, "%d", n);
        value = number;
    }
    strv_env_set(&r->sizes, name, value);
    return 0;
}

/* The line with the values of sizes; the caller frees. A name that is defined stays. */
static char *expand(struct reader *r, const char *line)
{
    char *text = NULL;
    size_t size, plain = strspn(line, BLANKS "$");
    FILE *out = xmemstream(&text, &size);
    for (const char *at = line; *at; plain = strcspn(at, "$")) {
        fwrite(at, 1, plain, out);
        at += plain;
        if (*at != '$')
            continue;
        OWNED char *name = xstrndup(at + 1, strspn(at + 1, NAME_CHARACTERS));
        const char *value = strv_env_get(&r->sizes, name);
        if (!value) {
            refuse(r, "no size '%s' is set", name);
            xmemclose(out);
            free(text);
            return NULL;
        }
        fputs(value, out);
        at += 1 + strlen(name);
    }
    xmemclose(out);
    return text;
}

/* Of repeated lines: $i counts the rounds, $before is the last layer before a round. */
static void begin_round(struct reader *r)
{
    char number[16];
    if (r->i >= r->times) /* their lines are passed over */
        return;
    snprintf(number, sizeof number, "%d", r->i);
    strv_env_set(&r->sizes, "i", number);
    strv_env_set(&r->sizes, "before", r->n ? r->type->layers[r->n - 1].name : "");
    r->line = r->repeat;
}

static int read_repeat(struct reader *r, const char *times)
{
    enum { ROUNDS = 1000 };
    if (r->repeat)
        return refuse(r, "the lines from %d on are repeated already", r->repeat);
    TRY(read_int(r, "repeat", times ? times : "", 0, ROUNDS, &r->times));
    r->repeat = r->line;
    r->i = 0;
    begin_round(r);
    return 0;
}

static int read_end(struct reader *r)
{
    if (!r->repeat)
        return refuse(r, "'end' ends no 'repeat'");
    if (++r->i < r->times) {
        begin_round(r);
        return 0;
    }
    r->repeat = 0;
    strv_env_set(&r->sizes, "i", NULL);
    strv_env_set(&r->sizes, "before", NULL);
    return 0;
}

/* ---- settings ---- */

static int read_setting(struct reader *r, const char *name, const char *value)
{
    static const char *const tasks[] = {[TASK_CLASSIFY] = "classify",
                                        [TASK_REGRESS] = "regress",
                                        [TASK_TOKENS] = "tokens"};
    if (strcmp(name, "context") == 0)
        return read_int(r, name, value, 1, MOST, &r->type->context);
    if (strcmp(name, "vocabulary") == 0)
        return read_int(r, name, value, 1, MOST, &r->type->vocabulary);
    if (strcmp(name, "optimizer") == 0) {
        free(r->type->optimizer);
        r->type->optimizer = xstrdup(value);
        return 0;
    }
    if (strcmp(name, "task") != 0)
        return refuse(
            r, "no setting '%s'; there are task, optimizer, context, vocabulary", name);
    if (r->n > 0)
        return refuse(r, "task comes before the first layer");
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        if (strcmp(tasks[i], value) == 0) {
            r->type->task = (enum task)i;
            return 0;
        }
    return refuse(r, "task is classify, regress or tokens, not '%s'", value);
}

/* ---- layers ---- */

/* Of images, or of tokens. `takes`: its attributes, between blanks; `needs`: the required
 * ones; `outputs_first`: of its weight. */
static const struct kind {
    const char *name;
    enum layer_kind kind;
    bool tokens;
    const char *takes, *needs, *needs_too;
    bool outputs_first;
} kinds[] = {
    {"conv", LAYER_CONV, false, " outputs size stride pad bias relu pool dropout from ",
     "outputs", "size"},
    {"linear", LAYER_LINEAR, false, " outputs relu dropout "},
    {"norm", LAYER_NORM, false, " relu add "},
    {"mean", LAYER_MEAN, false, " "},
    {"embed", LAYER_EMBED, true, " outputs positions dropout ", "outputs"},
    {"layer_norm", LAYER_LAYER_NORM, true, " eps no_bias "},
    {"rms_norm", LAYER_RMS_NORM, true, " eps "},
    {"linear", LAYER_DENSE, true, " outputs no_bias join add dropout ", "outputs",
     .outputs_first = true},
    {"dense", LAYER_DENSE, true, " outputs no_bias add dropout ", "outputs"},
    {"gelu", LAYER_GELU, true, " gated "},
    {"silu", LAYER_SILU, true, " gated "},
    {"rotary", LAYER_ROTARY, true, " heads kv_heads base factor low high original ",
     "heads"},
    {"attention", LAYER_ATTENTION, true, " heads kv_heads dropout ", "heads"},
    {"logits", LAYER_LOGITS, true, " "},
};

static bool listed(const char *list, const char *word)
{
    char between[40];
    snprintf(between, sizeof between, " %s ", word);
    return strstr(list, between) != NULL;
}

/* Is this the name of the layer, or of some of its parameters? */
static bool has_name(const struct layer_spec *l, const char *name)
{
    bool same =
        strcmp(l->name, name) == 0 || (l->positions && strcmp(l->positions, name) == 0);
    for (int i = 0; i < LAYER_JOINED && l->joined[i].name; i++)
        same |= strcmp(l->joined[i].name, name) == 0;
    return same;
}

/* The number of layers back to NAME; 0: no earlier layer has that name. */
static int find_layer(const struct reader *r, const char *name)
{
    int back = 1;
    while (back <= r->n && !has_name(&r->type->layers[r->n - back], name))
        back++;
    return back <= r->n ? back : 0;
}

static int read_layer_name(const struct reader *r, const char *name, int *back)
{
    *back = find_layer(r, name);
    if (!*back)
        return refuse(r, "no layer '%s' is before this one", name);
    const char *layer = r->type->layers[r->n - *back].name;
    return strcmp(layer, name) == 0
               ? 0
               : refuse(r, "'%s' is a part of layer '%s'; name that", name, layer);
}

static int read_attribute(struct reader *r, struct layer_spec *l, const char *name,
                          const char *value)
{
    const struct {
        const char *name;
        int *to, least;
    } numbers[] = {{"outputs", &l->outputs, 1}, {"size", &l->size, 1},
                   {"heads", &l->size, 1},      {"kv_heads", &l->kv_heads, 1},
                   {"base", &l->base, 1},       {"stride", &l->stride, 1},
                   {"pad", &l->pad, 0},         {"original", &l->original, 0}};
    const struct {
        const char *name;
        bool *to, set;
    } flags[] = {{"bias", &l->bare, false}, {"no_bias", &l->bare, true},
                 {"relu", &l->relu, true},  {"pool", &l->pool, true},
                 {"join", &l->join, true},  {"gated", &l->gated, true}};
    const struct {
        const char *name;
        float *to, least, below;
    } reals[] = {{"dropout", &l->dropout, 0, 1},
                 {"eps", &l->eps, 1e-12f, 1},
                 {"factor", &l->factor, 1, 1e6f},
                 {"low", &l->low, 0, 1e6f},
                 {"high", &l->high, 0, 1e6f}};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (strcmp(flags[i].name, name) == 0) {
            *flags[i].to = flags[i].set;
            return value ? refuse(r, "'%s' takes no value", name) : 0;
        }
    if (!value)
        return refuse(r, "'%s' takes a value: %s=...", name, name);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (strcmp(numbers[i].name, name) == 0)
            return read_int(r, name, value, numbers[i].least, MOST, numbers[i].to);
    for (size_t i = 0; i < ARRAY_LEN(reals); i++)
        if (strcmp(reals[i].name, name) == 0) {
            char *end;
            float x = *reals[i].to = strtof(value, &end);
            return end != value && !*end && x >= reals[i].least && x < reals[i].below
                       ? 0
                       : refuse(r, "%s takes a number from %g to below %g, not '%s'",
                                name, (double)reals[i].least, (double)reals[i].below,
                                value);
        }
    if (strcmp(name, "from") == 0)
        return read_layer_name(r, value, &l->from);
    if (strcmp(name, "add") == 0)
        return read_layer_name(r, value, &l->shortcut);
    if (strcmp(value, l->name) == 0)
        return refuse(r, "positions need a name of their own, not '%s'", value);
    l->positions = xstrdup(value);
    return 0;
}

static int unknown_kind(const struct reader *r, const char *kind)
{
    OWNED char *names = NULL;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (kinds[i].tokens == (r->type->task == TASK_TOKENS))
            xappendf(&names, "%s%s", names ? ", " : "", kinds[i].name);
    return refuse(r, "no kind of layers '%s'; there are %s", kind, names);
}

/* The last layer becomes a part of the one before it. */
static int join(struct reader *r)
{
    struct layer_spec *l = &r->type->layers[r->n - 1], *to = r->n > 1 ? l - 1 : NULL;
    int i = 0;
    while (to && i < LAYER_JOINED && to->joined[i].name)
        i++;
    if (!to || i == LAYER_JOINED || !to->outputs_first || to->bare != l->bare ||
        to->shortcut || l->shortcut || to->dropout != l->dropout)
        return refuse(r,
                      "'join' needs a linear layer with the same attributes before it, "
                      "without 'add', and joins %d at most",
                      1 + LAYER_JOINED);
    to->joined[i] = (struct layer_joined){l->name, l->outputs};
    to->outputs += l->outputs;
    *l = (struct layer_spec){LAYER_END};
    r->n--;
    return 0;
}

static int read_attributes(struct reader *r, const struct kind *kind, char *words)
{
    char seen[200] = " ", *next;
    for (char *word = strtok_r(words, BLANKS, &next); word;
         word = strtok_r(NULL, BLANKS, &next)) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        if (!listed(kind->takes, word))
            return refuse(r, "%s layers have no '%s'; theirs are:%s", kind->name, word,
                          kind->takes[1] ? kind->takes : " none");
        if (listed(seen, word))
            return refuse(r, "'%s' is there twice", word);
        snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s ", word);
        TRY(read_attribute(r, &r->type->layers[r->n], word, value));
    }
    const char *const needs[] = {kind->needs, kind->needs_too};
    for (size_t i = 0; i < ARRAY_LEN(needs); i++)
        if (needs[i] && !listed(seen, needs[i]))
            return refuse(r, "%s layers need %s=...", kind->name, needs[i]);
    return 0;
}

static int read_layer(struct reader *r, char *name, const char *word, char *rest)
{
    const struct kind *kind = kinds, *end = kinds + ARRAY_LEN(kinds);
    while (kind < end && (kind->tokens != (r->type->task == TASK_TOKENS) ||
                          strcmp(kind->name, word) != 0))
        kind++;
    if (kind == end)
        return unknown_kind(r, word);
    if (find_layer(r, name))
        return refuse(r, "there is a layer '%s' already", name);
    if (strpbrk(name, "\"\\")) /* traces quote it */
        return refuse(r, "a layer cannot be called '%s': use no '\"' and no '\\'", name);
    if (strncmp(name, "optim.", 6) == 0)
        return refuse(r, "'optim.' begins the names of optimizer states, not of layers");
    if (r->n == LAYERS) /* each name is compared with all */
        return refuse(r, "a model has %d layers at most", LAYERS);
    r->type->layers =
        xrealloc(r->type->layers, (size_t)r->n + 2, sizeof *r->type->layers);
    struct layer_spec *l = &r->type->layers[r->n];
    l[0] = (struct layer_spec){kind->kind,
                               kind->name,
                               xstrdup(name),
                               .line = r->line,
                               .stride = 1,
                               .from = 1,
                               .bare = kind->kind == LAYER_CONV,
                               .outputs_first = kind->outputs_first,
                               .base = 10000,
                               .factor = 1,
                               .low = 1,
                               .high = 4,
                               .eps = 1e-5f};
    l[1] = (struct layer_spec){LAYER_END};
    int rc = read_attributes(r, kind, rest);
    l->kv_heads = l->kv_heads ? l->kv_heads : l->size;
    r->n++;
    return rc == 0 && l->join ? join(r) : rc;
}

static int read_words(struct reader *r, char *line)
{
    char *rest, *first = strtok_r(line, BLANKS, &rest);
    char *second = strtok_r(NULL, BLANKS, &rest);
    bool end = strcmp(first, "end") == 0;
    if (end || strcmp(first, "repeat") == 0) {
        if (strtok_r(NULL, BLANKS, &rest) || (end && second))
            return refuse(r, "after '%s' there is too much", first);
        return end ? read_end(r) : read_repeat(r, second);
    }
    if (strchr(first, '=') || (second && *second == '=' && second[1]))
        return refuse(r, "a setting is NAME = VALUE, with blanks around the '='");
    if (!second)
        return refuse(r, "after '%s' its kind is missing", first);
    if (strcmp(second, "=") != 0)
        return read_layer(r, first, second, rest);
    char *value = strtok_r(NULL, BLANKS, &rest);
    if (!value || strtok_r(NULL, BLANKS, &rest))
        return refuse(r, "%s = takes one value", first);
    return *first == '$' ? define(r, first + 1, value) : read_setting(r, first, value);
}

static int read_line(struct reader *r, const char *line)
{
    const char *first = line + strspn(line, BLANKS);
    bool over = r->repeat && r->i >= r->times;
    bool end = strncmp(first, "end", 3) == 0 && !first[3 + strspn(first + 3, BLANKS)];
    if (!*first || (over && !end))
        return 0;
    OWNED char *text = expand(r, line);
    if (!text)
        return -1;
    for (const char *c = text; *c; c++)
        r->type->checksum = rng_mix(r->type->checksum ^ (unsigned char)*c);
    for (size_t i = 0, n; text[i]; i += n) /* checkpoints and traces have names */
        if ((n = utf8_length(text + i)) == 0 ||
            (iscntrl((unsigned char)text[i]) && !strchr(BLANKS, text[i])))
            return refuse(r, "the line is not text in UTF-8");
    return read_words(r, text);
}

static int read_text(struct reader *r, const char *text)
{
    static const char mark[] = "\xef\xbb\xbf"; /* editors on Windows begin UTF-8 by it */
    if (strncmp(text, mark, strlen(mark)) == 0)
        text += strlen(mark);
    OWNED char *copy = xstrdup(text), **lines = NULL;
    char *next = copy, *line;
    int n = 0;
    while ((line = strsep(&next, "\n"))) {
        line[strcspn(line, "#")] = '\0';
        lines = xrealloc(lines, (size_t)n + 1, sizeof *lines);
        lines[n++] = line;
    }
    while (r->line < n) {
        r->line++;
        TRY(read_line(r, lines[r->line - 1]));
    }
    return r->repeat ? refuse(r, "'repeat' in line %d has no 'end'", r->repeat) : 0;
}

static int check_type(const struct reader *r)
{
    const struct model_type *type = r->type;
    if (r->n == 0)
        return err_set(r->err, "'%s' describes no layers", type->where);
    if (!type->optimizer)
        return err_set(r->err, "'%s' names no optimizer: optimizer = adam", type->where);
    if (type->task == TASK_TOKENS && !(type->context && type->vocabulary))
        return err_set(r->err, "'%s' has tokens, and no context = N or vocabulary = N",
                       type->where);
    return check_given(r);
}

void model_type_free(struct model_type *type)
{
    if (!type)
        return;
    for (struct layer_spec *l = type->layers; l->kind != LAYER_END; l++) {
        free(l->name);
        free(l->positions);
        for (int i = 0; i < LAYER_JOINED; i++)
            free(l->joined[i].name);
    }
    free(type->layers);
    free(type->optimizer);
    free(type->name);
    free(type->where);
    free(type);
}

struct model_type *description_read(const char *name, const char *where, const char *text,
                                    const char *sizes, struct ddp_err *err)
{
    struct model_type *type = xcalloc(1, sizeof *type);
    struct reader r = {.type = type, .err = err};
    type->layers = xcalloc(1, sizeof *type->layers); /* LAYER_END */
    type->name = xstrdup(name);
    type->where = xstrdup(where);
    int rc = read_given(&r, sizes);
    if (rc == 0)
        rc = read_text(&r, text);
    if (rc == 0)
        rc = check_type(&r);
    strv_finish(&r.given);
    strv_finish(&r.sizes);
    if (rc == 0)
        return type;
    model_type_free(type);
    return NULL;
}
