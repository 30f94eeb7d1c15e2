/* launcher/cli/cli.c - see cli.h
 *
 * Not argp: it uses getopt_long, which accepts every unambiguous prefix of an option
 * ("--t 5"), does not treat underscores as dashes, and prints its errors in its own words
 * or not at all.
 */
#define LOG_SUBSYS "options"
#include "launcher/cli/cli.h"

#include "common/apps.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/cli/defaults.h"
#include "launcher/cli/foreign.h"
#include "launcher/cli/help.h"
#include "launcher/cli/options.h"
#include "launcher/cli/spelling.h"
#include "launcher/cli/suggest.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "unknown"
#endif

static void print_line(const char *text, void *arg)
{
    fprintf(arg, "%s\n", text);
}

/* --- parsing ------------------------------------------------------------------------ */

static const struct option *find_option(const char *name, size_t len)
{
    for (size_t i = 0; len > 0 && i < options_len; i++) {
        if (spelling_is(options[i].names, name, len))
            return &options[i];
    }
    return NULL;
}

/* The option of `word`; `*value`: its argument in that word (--np=4, -n4), or NULL. */
static const struct option *match(const char *word, const char **value)
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

static int take(const struct option *o, const char *word, const char *value,
                struct opts *opts, struct ddp_err *err)
{
    char name[64];
    size_t len = strcspn(word, "=");
    snprintf(name, sizeof name, "%.*s", (int)(len < 60 ? len : 60), word);
    if (value && !o->arg)
        return err_set(err, "%s takes no value (try ddprun --help)", name);
    if (!value && o->arg && o->arg[0] == '[')
        value = o->arg[1] == '=' ? "on" : o->words[0].text;
    struct ddp_err why;
    if (o->read(o, name, value, opts, &why) == 0)
        return 0;
    return err_set(err, "%s (try ddprun --help)", why.text);
}

static void set_defaults(struct opts *opts)
{
    *opts = (struct opts){
        .rank_names = NAMES_ALL,
        .mpi = MPI_AUTO,
        .node_rank = -1,
        .tree_width = 32,
        .ssh_window = 64,
        .start_timeout_ms = 60000,
        .preload = "",
        .node_timeout_ms = 60000,
        .grace_ms = 5000,
        .gpus_per_node = -1,
        .scaling_dir = "scaling",
    };
}

/* --help [TOPIC], --version: 1 when it has been printed, -1 with an error. */
static int answer(const struct opts *opts, const struct option *o, const char *topic,
                  struct ddp_err *err)
{
    if (!spelling_is(o->names, "version", 7)) {
        if (help_show(topic, print_line, stdout, err) < 0)
            return -1;
    } else if (opts->as) {
        printf("%s (ddprun " DDPRUN_VERSION ")\n", opts->as->version);
    } else {
        puts("ddprun " DDPRUN_VERSION);
    }
    return fflush(stdout) == 0 ? 1 : err_errno(err, "cannot write");
}

static bool wants_script(const struct opts *opts)
{
    return opts->script != SCHED_NONE || opts->submit;
}

/* Checks after parsing: options that depend on or exclude each other. */
static int check_options(struct opts *opts, const char *hosts_option,
                         const char *script_option, struct ddp_err *err)
{
    int *means = wants_script(opts) ? &opts->nnodes : &opts->per_node;
    if (opts->letter_n && *means && *means != opts->letter_n)
        return err_set(err, "-N %d and %s %d contradict each other (try ddprun --help)",
                       opts->letter_n,
                       wants_script(opts) ? "--nnodes" : "--nproc-per-node", *means);
    if (opts->letter_n)
        *means = opts->letter_n;
    if (wants_script(opts) && hosts_option)
        return err_set(err,
                       "%s and a batch script: the scheduler chooses the hosts; "
                       "leave it out",
                       hosts_option);
    if ((wants_script(opts) || opts->scaling) && opts->apps.n > 0)
        return err_set(err, "a batch script, or --scaling, runs one program");
    if (opts->scaling && opts->np)
        return err_set(err, "--scaling sets the number of ranks; leave out -np");
    if (opts->min_nnodes > 0 && (opts->np || opts->node_rank >= 0 || wants_script(opts)))
        return err_set(err, "--nnodes MIN:MAX and %s: %s",
                       opts->np               ? "-np"
                       : opts->node_rank >= 0 ? "--node-rank"
                                              : "a batch script",
                       opts->np ? "the hosts decide how many ranks there are; use "
                                  "--nproc-per-node"
                                : "the number of hosts has to be one number");
    if (!wants_script(opts) && script_option)
        return err_set(err,
                       "%s is for a batch script: --script slurm, sge, pbs or lsf, or "
                       "--submit",
                       script_option);
    return 0;
}

static bool wants_program(const struct opts *opts)
{
    return !opts->show_env && !opts->preflight && !opts->top && !opts->list_sites &&
           !opts->fetch_data && !opts->report_on;
}

static int check_fetch(const struct opts *opts, struct ddp_err *err)
{
    if (!opts->fetch_data && (opts->data_dir || opts->data_mirror || opts->data_sets))
        return err_set(err, "%s goes with --fetch-data (try ddprun --help)",
                       opts->data_dir      ? "--data-dir"
                       : opts->data_mirror ? "--data-mirror"
                                           : "--data-sets");
    if (opts->fetch_data && opts->argv[0])
        return err_set(err, "--fetch-data starts nothing, so '%.80s' cannot follow",
                       opts->argv[0]);
    return 0;
}

/* Parser state. */
struct reading {
    char **argv;
    int argc, i; /* i: the current word */
    const char *hosts_option, *script_option;
    bool defaults;       /* these are not words of the command line */
    struct strv refused; /* messages about other launchers' options */
};

/* The next word, as the value of option `word`; NULL with an error if there is none. */
static const char *next_value(struct reading *r, const char *word, const char *arg,
                              struct ddp_err *err)
{
    if (r->i + 1 < r->argc)
        return r->argv[++r->i];
    err_set(err, "%s takes %s (try ddprun --help)", word, arg);
    return NULL;
}

static bool is_word(const struct word *words, const char *text)
{
    while (words->text && strcmp(words->text, text) != 0)
        words++;
    return words->text != NULL;
}

/* Store option `o`, spelled `word`; `value` NULL: take the next word if it needs one. */
static int read_option(struct reading *r, const struct option *o, const char *word,
                       const char *value, struct opts *opts, struct ddp_err *err)
{
    bool optional = o->arg && o->arg[0] == '[';
    if (o->arg && !optional && !value && !(value = next_value(r, word, o->arg, err)))
        return -1;
    if (optional && o->arg[1] != '=' && !value && r->i + 1 < r->argc &&
        is_word(o->words, r->argv[r->i + 1]))
        value = r->argv[++r->i];
    if (take(o, word, value, opts, err) < 0)
        return -1;
    if (r->defaults) /* the ddprun in a job reads them itself */
        return 0;
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
    const struct option *o = match(word, &value);
    if (!o->read)
        return answer(opts, o, NULL, err);
    return read_option(r, o, word, value, opts, err);
}

static void export_foreign(const struct foreign *f, const char *const *values,
                           struct opts *opts)
{
    size_t before = opts->export_env.n;
    foreign_variables(f, values, &opts->export_env);
    for (size_t i = before; i < opts->export_env.n; i++) {
        strv_push(&opts->passed, "-x");
        strv_push(&opts->passed, opts->export_env.v[i]);
    }
}

static int read_foreign(struct reading *r, const struct foreign *f, const char *word,
                        struct opts *opts, struct ddp_err *err)
{
    const char *values[2] = {strchr(word, '='), NULL};
    char *ours;
    int n = 0;
    if (f->values > 0 && values[0]) {
        values[0]++;
        n++;
    }
    for (; n < f->values; n++) {
        if (n == 1 && strchr(values[0], '='))
            break; /* mpiexec takes -genv NAME VALUE and -genv NAME=VALUE */
        if (!(values[n] = next_value(r, word, n ? "two values" : "a value", err)))
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
        export_foreign(f, values, opts);
        break;
    case FOREIGN_IGNORED:
        strv_pushf(&opts->ignored, "%.*s", (int)strcspn(word, "="), word);
        break;
    case FOREIGN_REFUSED:
        foreign_complain(word, f->text, &r->refused);
    }
    return 0;
}

/* Parse the options up to the program. Returns 1 after --help or --version. */
static int read_words(struct reading *r, struct opts *opts, struct ddp_err *err)
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
        const struct option *o = f ? NULL : match(word, &value);
        if (!o && !f && !opts->as)
            f = foreign_find(FOREIGN_ALL, word);
        if (!o && !f)
            return r->refused.n > 0 ? foreign_refuse(&r->refused, err)
                                    : suggest_option(word, err);
        int rc = f          ? read_foreign(r, f, word, opts, err)
                 : !o->read ? answer(opts, o, value ? value : r->argv[r->i + 1], err)
                            : read_option(r, o, word, value, opts, err);
        if (rc != 0)
            return rc;
    }
    return r->refused.n > 0 ? foreign_refuse(&r->refused, err) : 0;
}

/* --- several programs: prog1 : -np 2 prog2 ------------------------------------------ */

/* Does the ':' at `word` begin another program? mpirun's does in any case. */
static bool begins_program(const struct opts *opts, char *const *word)
{
    bool mpi = opts->as && opts->as->programs & (OPEN_MPI | HYDRA);
    return strcmp(*word, ":") == 0 && word[1] && (mpi || word[1][0] == '-');
}

/* The options between ':' and the program: -np only. Returns the number of words. */
static int read_app_options(char *const *words, struct opts *app, struct ddp_err *err)
{
    int i = 0;
    const char *value;
    for (; words[i] && words[i][0] == '-' && words[i][1]; i++) {
        const char *word = words[i];
        const struct option *o = match(strcmp(word, "-c") == 0 ? "-n" : word, &value);
        if (!o || !spelling_is(o->names, "np", 2))
            return err_set(
                err,
                "'%.80s' behind ':': only -np may differ between programs; other "
                "options come before the first one",
                word);
        if (!value && !(value = words[++i]))
            return err_set(err, "%s takes %s (try ddprun --help)", word, o->arg);
        if (take(o, word, value, app, err) < 0)
            return -1;
    }
    return i;
}

/* Split the words from the first program on. */
static int read_programs(char *const *words, struct opts *opts, struct ddp_err *err)
{
    struct strv argv = {0};
    struct opts app = {.np = opts->np};
    int ranks = 0, n;
    while (*words) {
        if (app.np == 0) {
            strv_finish(&argv);
            return err_set(err,
                           "'%.80s' is one of several programs: each needs -np N, as in "
                           "-np 1 a : -np 3 b",
                           *words);
        }
        if (argv.n > 0)
            apps_add(&opts->apps, (unsigned)ranks, argv.n);
        size_t first = argv.n;
        for (; *words && !begins_program(opts, words); words++)
            strv_push(&argv, *words);
        ranks += app.np;
        app.np = 0;
        n = *words ? read_app_options(words + 1, &app, err) : 0;
        if (n < 0 || argv.n == first || (*words && !words[n + 1])) {
            strv_finish(&argv);
            return n < 0
                       ? -1
                       : err_set(err, "no program %s ':'", *words ? "behind" : "before");
        }
        words += *words ? n + 1 : 0;
    }
    opts->np = ranks;
    opts->interpreted = argv;
    opts->argv = argv.v;
    return 0;
}

static int find_programs(struct opts *opts, struct ddp_err *err)
{
    char *const *word = opts->argv;
    while (*word && !begins_program(opts, word))
        word++;
    if (!*word || opts->end_marked)
        return 0;
    opts->preload = NULL;
    return read_programs(opts->argv, opts, err);
}

/* The lines of --app FILE, as words of one command line with ':' in between. */
static int read_app_file(struct reading *r, struct opts *opts, struct ddp_err *err)
{
    struct strv words = {0};
    char *line = NULL, *rest;
    size_t room = 0;
    FILE *f = fopen(opts->app, "re");
    if (!f)
        return err_errno(err, "--app '%s'", opts->app);
    strv_push(&words, "--app");
    while (getline(&line, &room, f) > 0) {
        char *w = strtok_r(line, " \t\r\n", &rest);
        if (!w || *w == '#')
            continue;
        if (words.n > 1)
            strv_push(&words, ":");
        for (; w; w = strtok_r(NULL, " \t\r\n", &rest))
            strv_push(&words, w);
    }
    free(line);
    int unread = ferror(f) ? errno : 0; /* a directory */
    fclose(f);
    *r = (struct reading){.argv = words.v, .argc = (int)words.n};
    for (size_t i = 0; i < words.n; i++) /* they live as long as the options */
        strv_push_nodup(&opts->texts, words.v[i]);
    int rc = unread ? err_set(err, "%s", strerror(unread)) : read_words(r, opts, err);
    opts->argv = r->argv + r->i;
    if (rc == 0 && r->i == r->argc)
        rc = err_set(err, "it names no program");
    if (rc == 0)
        rc = find_programs(opts, err);
    if (rc == 0 && opts->argv != opts->interpreted.v) { /* only one */
        strv_push_all(&opts->interpreted, opts->argv);
        opts->argv = opts->interpreted.v;
    }
    free(words.v);
    strv_finish(&r->refused);
    return rc < 0 ? err_prefix(err, "--app '%s'", opts->app) : rc;
}

/* "name=value" as an option of the command line, malloc'ed; NULL: a flag that is off. */
static char *setting_word(const struct opts *opts, const char *setting)
{
    const char *equals = strchr(setting, '='), *value;
    char *word = xasprintf("--%s", setting);
    const struct option *o = match(word, &value);
    const struct foreign *f =
        opts->as || !o ? foreign_find(opts->as ? opts->as->programs : FOREIGN_ALL, word)
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

/* Options from elsewhere (defaults.h). */
static int take_defaults(const char *origin, const struct strv *words, void *arg,
                         struct ddp_err *err)
{
    struct opts *opts = arg;
    const struct foreign_name *as = opts->as;
    struct strv line = {0};
    opts->as = strcmp(origin, DEFAULTS_PET) == 0     ? foreign_name("torchrun")
               : as && strcmp(origin, as->name) == 0 ? as
                                                     : NULL;
    strv_push(&line, origin);
    for (size_t i = 0; i < words->n; i++) {
        char *word =
            *words->v[0] == '-' ? xstrdup(words->v[i]) : setting_word(opts, words->v[i]);
        if (word)
            strv_push_nodup(&line, word);
    }
    struct reading r = {.argv = line.v, .argc = (int)line.n, .defaults = true};
    int rc = read_words(&r, opts, err);
    if (rc == 0 && r.i < r.argc)
        rc = err_set(err, "'%.80s' is not an option", line.v[r.i]);
    if (rc < 0)
        err_prefix(err, "%s", origin);
    char *text = shell_join(line.v + 1);
    strv_pushf(&opts->origins, "%s: %s", origin, text);
    free(text);
    for (size_t i = 0; i < line.n; i++) /* the options point into them */
        strv_push_nodup(&opts->texts, line.v[i]);
    free(line.v);
    strv_finish(&r.refused);
    opts->as = as;
    return rc;
}

/* Called as another launcher: by its name, or with --as before everything else. */
static int read_as(struct reading *r, struct opts *opts, struct ddp_err *err)
{
    static const char option[] = "--as=";
    const char *word = r->argc > 1 ? r->argv[1] : "", *name;
    opts->as = r->argc > 0 ? foreign_name(r->argv[0]) : NULL;
    if (strncmp(word, option, strlen(option) - 1) != 0 || (word[4] && word[4] != '='))
        return 0;
    r->i = 1;
    name = word[4] ? word + strlen(option) : next_value(r, word, "a launcher", err);
    r->argv += r->i;
    r->argc -= r->i;
    opts->as = name ? foreign_name(name) : NULL;
    if (name && !opts->as)
        err_set(
            err,
            "--as is torchrun, mpirun, mpiexec or horovodrun, not '%.80s' (try ddprun "
            "--help)",
            name);
    return opts->as ? 0 : -1;
}

int cli_parse(int argc, char **argv, struct opts *opts, struct ddp_err *err)
{
    struct reading r = {.argv = argv, .argc = argc};
    set_defaults(opts);
    int rc = read_as(&r, opts, err);
    if (rc == 0 && opts->as && opts->as->defaults) {
        struct strv own = {0};
        strv_push(&own, opts->as->defaults);
        rc = take_defaults(opts->as->name, &own, opts, err);
        strv_finish(&own);
    }
    if (rc == 0)
        rc = defaults_each(take_defaults, opts, err);
    if (rc == 0)
        rc = read_words(&r, opts, err);
    strv_finish(&r.refused);
    if (rc != 0)
        return rc;
    opts->argv = r.argv + r.i;
    if (opts->app) {
        if (r.i < r.argc)
            return err_set(err, "--app and '%.80s': the programs are in the file",
                           *opts->argv);
        if ((rc = read_app_file(&r, opts, err)) != 0)
            return rc;
    }
    if (r.i == r.argc && wants_program(opts))
        return err_set(err, "no program given (try ddprun --help)");
    if (check_fetch(opts, err) < 0 || (!opts->app && find_programs(opts, err) < 0))
        return -1;
    return check_options(opts, r.hosts_option, r.script_option, err);
}

static void warn_of_ignored(const struct opts *opts)
{
    char *names = shell_join(opts->ignored.v);
    if (opts->ignored.n > 0)
        log_warn("ignored, as they have no effect in ddprun: %s", names);
    free(names);
}

void cli_warn(const struct opts *opts)
{
    bool placed = opts->np || opts->per_node || opts->hosts || opts->hostfile;
    const char *late =
        wants_script(opts) ? "submit script site" : "np nproc-per-node hostfile";
    warn_of_ignored(opts);
    if (opts->end_marked) /* after "--" everything is the program's */
        return;
    if (!wants_script(opts) && placed) /* the program may be a launcher itself */
        return;
    for (char *const *word = opts->argv + 1; *opts->argv && *word; word++) {
        size_t dashes = strspn(*word, "-"), len = strcspn(*word, "=");
        bool option = dashes == 2 || strcmp(*word, "-np") == 0;
        if (option && spelling_is(late, *word + dashes, len - dashes))
            log_warn(
                "'%.*s' follows the program and was passed to %s; put ddprun's options "
                "before it",
                (int)len, *word, opts->argv[0]);
    }
}

void opts_finish(struct opts *opts)
{
    strv_finish(&opts->export_env);
    strv_finish(&opts->passed);
    strv_finish(&opts->texts);
    strv_finish(&opts->ignored);
    strv_finish(&opts->origins);
    strv_finish(&opts->interpreted);
    strv_finish(&opts->apps);
    free(opts->interpreter);
    *opts = (struct opts){0};
}
