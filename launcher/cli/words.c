/* launcher/cli/words.c - see words.h
 *
 * Not argp: it uses getopt_long, which accepts every unambiguous prefix of an option
 * ("--t 5"), does not treat underscores as dashes, and prints its errors in its own words
 * or not at all.
 */
#include "launcher/cli/words.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/cli/foreign.h"
#include "launcher/cli/help.h"
#include "launcher/cli/spelling.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "unknown"
#endif

static const struct option *find_option(const char *name, size_t len)
{
    for (size_t i = 0; len > 0 && i < options_len; i++) {
        if (spelling_is(options[i].names, name, len))
            return &options[i];
    }
    return NULL;
}

const struct option *words_match(const char *word, const char **value)
{
    const char *name = word + (word[1] == '-' ? 2 : 1);
    size_t len = strcspn(name, "=");
    const struct option *o = find_option(name, len);
    *value = o && name[len] ? name + len + 1 : NULL;
    if (o || word[1] == '-')
        return o;
    o = find_option(name, 1);
    if (!o || !o->arg)
        return NULL;
    if (strcmp(o->arg, "N") == 0 && isalpha((unsigned char)name[1]))
        return NULL; /* -nnp: a misspelt name, not -n with a number */
    *value = name + 1;
    return o;
}

int words_take(const struct option *o, const char *word, const char *value,
               struct opts *opts, struct ddp_err *err)
{
    char name[64];
    size_t len = strcspn(word, "=");
    snprintf(name, sizeof name, "%.*s", (int)(len < 60 ? len : 60), word);
    if (value && !o->arg)
        return err_set(err, "%s takes no value (try ddprun --help)", name);
    if (!value && o->arg && o->arg[0] == '[')
        value = o->words && o->arg[1] != '=' ? o->words[0].text : "on";
    struct ddp_err why;
    if (o->read(o, name, value, opts, &why) == 0)
        return 0;
    return err_set(err, "%s (try ddprun --help)", why.text);
}

/* --help [TOPIC], --version: 1 when it has been printed, -1 with an error. */
static int answer(const struct opts *opts, const struct option *o, const char *topic,
                  struct ddp_err *err)
{
    if (!spelling_is(o->names, "version", 7)) {
        TRY(help_show(topic, stdout, err));
    } else if (opts->as) {
        printf("%s (ddprun " DDPRUN_VERSION ")\n", opts->as->version);
    } else {
        puts("ddprun " DDPRUN_VERSION);
    }
    return fflush(stdout) == 0 ? 1 : err_errno(err, "cannot write");
}

const char *words_next(struct reading *r, const char *word, const char *arg,
                       struct ddp_err *err)
{
    if (r->i + 1 < r->argc)
        return r->argv[++r->i];
    err_set(err, "%s takes %s (try ddprun --help)", word, arg);
    return NULL;
}

/* Is this the optional value of `o`, and not the program? */
static bool is_value(const struct option *o, const char *text)
{
    const struct word *words = o->words;
    if (!words) {
        const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
        return *text && !port[strspn(port, "0123456789")] && !strchr(text, '/');
    }
    while (words->text && strcmp(words->text, text) != 0)
        words++;
    return words->text != NULL;
}

/* Store option `o`, spelled `word`; `value` NULL: take the next word if it needs one. */
static int read_option(struct reading *r, const struct option *o, const char *word,
                       const char *value, struct opts *opts, struct ddp_err *err)
{
    bool optional = o->arg && o->arg[0] == '[';
    if (o->arg && !optional && !value && !(value = words_next(r, word, o->arg, err)))
        return -1;
    const char *next =
        optional && !value && r->i + 1 < r->argc ? r->argv[r->i + 1] : NULL;
    if (next && is_value(o, next)) {
        if (o->arg[1] == '=') /* else it would be the program */
            return err_set(err, "'%s %.80s': write %s=%.80s (try ddprun --help)", word,
                           next, word, next);
        value = r->argv[++r->i];
    }
    OWNED char *name = xstrndup(o->names, strcspn(o->names, " "));
    /* mpirun adds up the hosts of several -H; horovodrun uses the last one's */
    if (o->once && !r->defaults && opts_given(opts, name))
        return err_set(
            err, "%s is given twice; name all hosts in one (try ddprun --help)", word);
    TRY(words_take(o, word, value, opts, err));
    if (r->defaults) /* the ddprun in a job reads them itself */
        return 0;
    strv_push(&opts->given, name);
    if (o->where == NOT_IN_SCRIPT)
        r->hosts_option = word;
    if (o->where == SCRIPT_ONLY)
        r->script_option = word;
    if (o->where == JOB_TOO || o->where == NOT_IN_SCRIPT) {
        strv_push(&opts->passed, word);
        if (value == r->argv[r->i]) /* else it is part of the word */
            strv_push(&opts->passed, value);
    }
    return 0;
}

/* Store the option that `word` ("--bind-to=numa", owned here) says. */
static int read_ours(struct reading *r, char *word, struct opts *opts,
                     struct ddp_err *err)
{
    const char *value;
    strv_push_nodup(&opts->texts, word);
    const struct option *o = words_match(word, &value);
    if (!o->read)
        return answer(opts, o, NULL, err);
    return read_option(r, o, word, value, opts, err);
}

static void export_foreign(const struct foreign *f, const char *word,
                           const char *const *values, struct opts *opts)
{
    size_t before = opts->export_env.n;
    foreign_variables(f, word, values, &opts->export_env);
    for (size_t i = before; i < opts->export_env.n; i++) {
        strv_push(&opts->passed, "-x");
        strv_push(&opts->passed, opts->export_env.v[i]);
    }
}

static int read_foreign(struct reading *r, const struct foreign *f, const char *word,
                        struct opts *opts, struct ddp_err *err)
{
    const char *values[2] = {foreign_value(f, word), NULL};
    char *ours;
    int n = f->values > 0 && values[0];
    for (; n < f->values; n++) {
        if (n == 1 && strchr(values[0], '='))
            break; /* mpiexec takes -genv NAME VALUE and -genv NAME=VALUE */
        if (!(values[n] = words_next(r, word, n ? "two values" : "a value", err)))
            return -1;
    }
    switch (f->answer) {
    case FOREIGN_OURS:
        if ((ours = foreign_ours(f, values[0])))
            return read_ours(r, ours, opts, err);
        ours =
            xasprintf("'%s' has nothing like it here, see --help %s", values[0], f->text);
        foreign_complain(word, ours, &r->refused);
        free(ours);
        break;
    case FOREIGN_VARIABLE:
        if ((ours = foreign_mca(f, values)))
            return read_ours(r, ours, opts, err);
        export_foreign(f, word, values, opts);
        break;
    case FOREIGN_IGNORED:
        strv_pushf(&opts->ignored, "%.*s", (int)strcspn(word, "="), word);
        break;
    case FOREIGN_REFUSED:
        foreign_complain(word, f->text, &r->refused);
    }
    return 0;
}

/* Edit distance with transpositions (optimal string alignment); INT_MAX for long words.
 */
static int distance(const char *a, size_t alen, const char *b, size_t blen)
{
    int rows[3][64];
    if (alen >= ARRAY_LEN(rows[0]) || blen >= ARRAY_LEN(rows[0]))
        return INT_MAX;
    for (size_t j = 0; j <= blen; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= alen; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= blen; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = above2[j - 2] + 1 < best ? above2[j - 2] + 1 : best;
            row[j] = best;
        }
    }
    return rows[alen % 3][blen];
}

/* Sets `err` to a line about an unknown option, with the nearest one. Returns -1. */
static int suggest_option(const char *word, struct ddp_err *err)
{
    const char *name = word + strspn(word, "-"), *best = NULL;
    const struct foreign_name *owner = foreign_owner(word);
    if (owner && name[1])
        return err_set(
            err,
            "'%.80s' is an option of %s: write 'ddprun --as %s%s%s ...' for its "
            "command lines",
            word, owner->name, owner->name, owner->command ? " " : "",
            owner->command ? owner->command : "");
    size_t len = strcspn(name, "="), best_len = 0;
    /* short words are too similar */
    int least = len > 8 ? 4 : len > 4 ? 3 : len > 1 ? 2 : 0;
    for (size_t i = 0; i < options_len; i++) {
        for (const char *p = options[i].names; p && *p; p += strspn(p, " ")) {
            size_t n = strcspn(p, " ");
            bool begins = len > 3 && len < n && strncmp(name, p, len) == 0;
            int d = begins ? 1 : n > 1 ? distance(name, len, p, n) : INT_MAX;
            if (d < least) {
                least = d;
                best = p;
                best_len = n;
            }
            p += n;
        }
    }
    if (best)
        return err_set(err,
                       "unknown option '%.80s', did you mean --%.*s? (try ddprun --help)",
                       word, (int)best_len, best);
    return err_set(err, "unknown option '%.80s' (try ddprun --help)", word);
}

int words_read(struct reading *r, struct opts *opts, struct ddp_err *err)
{
    for (r->i = 1; r->i < r->argc; r->i++) {
        const char *word = r->argv[r->i], *value;
        if (word[0] != '-' || !word[1])
            break;
        if (strcmp(word, "--") == 0) {
            opts->end_marked = true;
            r->i++;
            break;
        }
        const struct foreign *f =
            opts->as ? foreign_find(opts->as->programs, word) : NULL;
        const struct option *o = f ? NULL : words_match(word, &value);
        if (!o && !f && !opts->as)
            f = foreign_find(FOREIGN_BESIDE, word);
        if (!o && !f && r->refused.n == 0)
            return suggest_option(word, err);
        if (!o && !f) { /* whether it has a value is not known, so this is the last one */
            foreign_complain(word, "no such option", &r->refused);
            break;
        }
        int rc = f          ? read_foreign(r, f, word, opts, err)
                 : !o->read ? answer(opts, o, value ? value : r->argv[r->i + 1], err)
                            : read_option(r, o, word, value, opts, err);
        if (rc != 0)
            return rc;
    }
    return r->refused.n > 0 ? foreign_refuse(&r->refused, err) : 0;
}

char *words_setting(const struct opts *opts, const char *setting)
{
    const char *equals = strchr(setting, '='), *value;
    char *word = xasprintf("--%s", setting);
    const struct option *o = words_match(word, &value);
    const struct foreign *f =
        opts->as || !o
            ? foreign_find(opts->as ? opts->as->programs : FOREIGN_BESIDE, word)
            : NULL;
    if (!equals || (f ? f->values > 0 : !o || o->arg))
        return word;
    if (spelling_is("1 true yes on", equals + 1, strlen(equals + 1)))
        *strchr(word, '=') = '\0';
    if (!spelling_is("0 false no off", equals + 1, strlen(equals + 1)))
        return word;
    free(word);
    return NULL;
}
