/* launcher/cli/programs.c - see programs.h */
#include "launcher/cli/programs.h"

#include "common/apps.h"
#include "common/err.h"
#include "common/scoped.h"
#include "common/text_file.h"
#include "launcher/cli/foreign.h"
#include "launcher/cli/spelling.h"
#include "launcher/cli/words.h"

#include <stdlib.h>
#include <string.h>

/* Does the ':' at `word` begin another program? It does before an option, and for mpirun
 * before any word. As the last word of a line with -np it does, too, so that the missing
 * program is reported, unless it is an option's value, as in sh -c ':'. */
static bool begins_program(const struct opts *opts, char *const *word)
{
    bool mpi = opts->as && opts->as->programs & (OPEN_MPI | HYDRA);
    if (strcmp(*word, ":") != 0)
        return false;
    return word[1] ? mpi || word[1][0] == '-'
                   : opts->np && word > opts->argv && word[-1][0] != '-';
}

/* The options between ':' and the program: -np only. Returns the number of words. */
static int read_app_options(char *const *words, struct opts *app, struct ddp_err *err)
{
    int i = 0;
    const char *value;
    for (; words[i] && words[i][0] == '-' && words[i][1]; i++) {
        const char *word = words[i];
        const struct option *o =
            words_match(strcmp(word, "-c") == 0 ? "-n" : word, &value);
        if (!o || !spelling_is(o->names, "np", 2))
            return err_set(
                err,
                "'%.80s' behind ':': only -np may differ between programs; other "
                "options come before the first one, and ': -np N env NAME=VALUE PROGRAM' "
                "sets a variable",
                word);
        if (!value && !(value = words[++i]))
            return err_set(err, "%s takes %s (try ddprun --help)", word, o->arg);
        TRY(words_take(o, word, value, app, err));
    }
    return i;
}

static int needs_np(const char *program, struct ddp_err *err)
{
    return err_set(err,
                   "'%.80s' is one of several programs: each needs -np N, as in "
                   "-np 1 a : -np 3 b",
                   program);
}

/* Split the words from the first program on. */
static int read_programs(char *const *words, struct opts *opts, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv argv = {0};
    struct opts app = {.np = opts->np};
    int ranks = 0, n;
    while (*words) {
        if (app.np == 0)
            return needs_np(*words, err);
        if (argv.n > 0)
            apps_add(&opts->apps, (unsigned)ranks, argv.n);
        size_t first = argv.n;
        for (; *words && !begins_program(opts, words); words++)
            strv_push(&argv, *words);
        ranks += app.np;
        app.np = 0;
        TRY(n = *words ? read_app_options(words + 1, &app, err) : 0);
        if (argv.n == first || (*words && !words[n + 1]))
            return err_set(err,
                           "no program %s ':'; to pass ':' to a program, write '--' "
                           "before that program",
                           argv.n == first ? "before" : "behind");
        words += *words ? n + 1 : 0;
    }
    opts->np = ranks;
    opts->interpreted = argv;
    opts->argv = argv.v;
    argv = (struct strv){0};
    return 0;
}

int programs_find(struct opts *opts, struct ddp_err *err)
{
    char *const *word = opts->argv;
    while (*word && !begins_program(opts, word))
        word++;
    if (!*word || opts->end_marked)
        return 0;
    opts->preload = NULL;
    return read_programs(opts->argv, opts, err);
}

int programs_read_file(struct reading *r, struct opts *opts, struct ddp_err *err)
{
    struct strv words = {0};
    OWNED char *text = text_file_read("file of --app", opts->app, err);
    char *rest, *lines = text;
    size_t bare = 0; /* the program of a further line without -np */
    if (!text)
        return -1;
    strv_push(&words, "--app");
    for (char *line; (line = strsep(&lines, "\n"));) {
        bool bom = strncmp(line, "\xef\xbb\xbf", 3) == 0; /* written by some editors */
        char *w = strtok_r(line + (bom ? 3 : 0), " \t\r", &rest);
        if (!w || *w == '#')
            continue;
        if (words.n > 1) {
            strv_push(&words, ":");
            bare = bare || *w == '-' ? bare : words.n;
        }
        for (; w; w = strtok_r(NULL, " \t\r", &rest))
            strv_push(&words, w);
    }
    *r = (struct reading){.argv = words.v, .argc = (int)words.n};
    for (size_t i = 0; i < words.n; i++) /* they live as long as the options */
        strv_push_nodup(&opts->texts, words.v[i]);
    int rc = bare ? needs_np(words.v[bare], err) : words_read(r, opts, err);
    opts->argv = r->argv + r->i;
    if (rc == 0 && r->i == r->argc)
        rc = err_set(err, "it names no program");
    if (rc == 0)
        rc = programs_find(opts, err);
    if (rc == 0 && opts->argv != opts->interpreted.v) { /* only one */
        strv_push_all(&opts->interpreted, opts->argv);
        opts->argv = opts->interpreted.v;
    }
    free(words.v);
    strv_finish(&r->refused);
    return rc < 0 ? err_prefix(err, "--app '%s'", opts->app) : rc;
}
