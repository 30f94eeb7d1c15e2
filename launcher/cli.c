/* launcher/cli.c - see cli.h
 *
 * Not argp: getopt_long, on which it stands, accepts every unambiguous beginning of an
 * option ("--t 5"), cannot treat underscores as dashes, and its errors are either printed
 * in its own words or lost. A hundred lines of our own do what mpirun's users expect.
 */
#define LOG_SUBSYS "options"
#include "launcher/cli.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/options.h"
#include "launcher/spelling.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "unknown"
#endif

/* --- help --------------------------------------------------------------------------- */

static const char *dashes(size_t len)
{
    return len == 1 ? "-" : "--";
}

/* "-n, --np N" into `out`: short names first. */
static void spell(const struct option *o, char *out, size_t size)
{
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (const char *p = o->names; *p; p += strspn(p, " ")) {
            size_t len = strcspn(p, " ");
            if ((len == 1) == (pass == 0))
                n += (size_t)snprintf(out + n, size - n, "%s%s%.*s", n ? ", " : "",
                                      dashes(len), (int)len, p);
            p += len;
        }
    }
    if (o->arg)
        snprintf(out + n, size - n, "%s%s", o->arg[0] == '[' ? "" : " ", o->arg);
}

/* `text` wrapped to 88 columns, each line indented. */
static void wrap(const char *text, void (*line)(const char *text, void *arg), void *arg)
{
    enum { INDENT = 10, WIDTH = 88 };
    while (*text) {
        size_t len = strlen(text), n = len;
        if (len > WIDTH - INDENT) {
            for (n = WIDTH - INDENT; n > 0 && text[n] != ' '; n--)
                ;
        }
        char *out = xasprintf("%*s%.*s", INDENT, "", (int)n, text);
        line(out, arg);
        free(out);
        text += n;
        text += strspn(text, " ");
    }
}

void cli_help(void (*line)(const char *text, void *arg), void *arg)
{
    char names[160];
    line("usage: ddprun [-np N] [--hostfile FILE | -H n1:4,n2:4] [options] program "
         "[args...]",
         arg);
    for (size_t i = 0; i < options_len; i++) {
        const struct option *o = &options[i];
        if (!o->names) {
            line("", arg);
            line(o->doc, arg);
            continue;
        }
        spell(o, names, sizeof names);
        char *text = xasprintf("  %s", names);
        line(text, arg);
        free(text);
        wrap(o->doc, line, arg);
    }
    line("", arg);
    line("One dash or two, '_' or '-' in a name: both are understood. Options end at the "
         "program.",
         arg);
    line("Exit code: that of the first rank that failed, 128+signal, 124 --timeout, 125 "
         "no start,",
         arg);
    line("126 not executable, 127 not found, 2 wrong usage. See ddprun(1).", arg);
}

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

/* The option that `word` is, and its argument when it is in the same word: --np=4, -n4.
 */
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
        return NULL; /* -nnp: a slip in a long name, and no number */
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
        value = "on";
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
        .grace_ms = 5000,
        .gpus_per_node = -1,
        .scaling_dir = "scaling",
    };
}

/* Asked for a text instead of a launch. */
static bool answered(const struct option *o)
{
    if (spelling_is(o->names, "help", 4))
        cli_help(print_line, stdout);
    else if (spelling_is(o->names, "version", 7))
        puts("ddprun " DDPRUN_VERSION);
    else
        return false;
    return true;
}

static bool wants_script(const struct opts *opts)
{
    return opts->script != SCHED_NONE || opts->submit;
}

/* Options whose meaning depends on others, which may stand behind them. */
static int settle(struct opts *opts, const char *hosts_option, const char *script_option,
                  struct ddp_err *err)
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
    if (opts->scaling && opts->np)
        return err_set(err, "--scaling says how many ranks there are; leave -np out");
    if (!wants_script(opts) && script_option)
        return err_set(err,
                       "%s is for a batch script: --script slurm, sge, pbs or lsf, or "
                       "--submit",
                       script_option);
    return 0;
}

static bool wants_program(const struct opts *opts)
{
    return !opts->show_env && !opts->preflight && !opts->list_sites && !opts->fetch_data;
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

int cli_parse(int argc, char **argv, struct opts *opts, struct ddp_err *err)
{
    int i = 1;
    const char *hosts_option = NULL, *script_option = NULL;
    set_defaults(opts);
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        const char *word = argv[i], *value;
        if (strcmp(word, "--") == 0) {
            opts->end_said = true;
            i++;
            break;
        }
        const struct option *o = match(word, &value);
        if (!o)
            return spelling_unknown(word, err);
        if (!o->read && answered(o))
            return fflush(stdout) == 0 ? 1 : err_errno(err, "cannot write");
        if (o->arg && o->arg[0] != '[' && !value) {
            if (++i == argc)
                return err_set(err, "%s takes %s (try ddprun --help)", word, o->arg);
            value = argv[i];
        }
        if (take(o, word, value, opts, err) < 0)
            return -1;
        if (o->where == NOT_IN_SCRIPT)
            hosts_option = word;
        if (o->where == SCRIPT_ONLY)
            script_option = word;
        if (o->where == JOB_TOO || o->where == NOT_IN_SCRIPT) {
            strv_push(&opts->passed, word);
            if (value == argv[i])
                strv_push(&opts->passed, value);
        }
    }
    opts->argv = argv + i;
    if (i == argc && wants_program(opts))
        return err_set(err, "no program given (try ddprun --help)");
    if (check_fetch(opts, err) < 0)
        return -1;
    return settle(opts, hosts_option, script_option, err);
}

/* mpirun's "-np 1 a : -np 3 b" */
static void tell_of_second_program(const struct opts *opts)
{
    char *const *word = opts->argv;
    while (*word && !(strcmp(*word, ":") == 0 && word[1] && word[1][0] == '-'))
        word++;
    if (*word)
        log_warn("':' begins no other program: all ranks run '%s', and it gets what "
                 "follows",
                 opts->argv[0]);
}

void cli_tell_of_late_options(const struct opts *opts)
{
    bool said = opts->np || opts->per_node || opts->hosts || opts->hostfile;
    const char *late =
        wants_script(opts) ? "submit script site" : "np nproc-per-node hostfile";
    if (opts->end_said) /* by "--": what follows is meant for the program */
        return;
    tell_of_second_program(opts);
    if (!wants_script(opts) && said) /* the program may start others itself */
        return;
    for (char *const *word = opts->argv + 1; *opts->argv && *word; word++) {
        size_t dashes = strspn(*word, "-"), len = strcspn(*word, "=");
        bool option = dashes == 2 || strcmp(*word, "-np") == 0;
        if (option && spelling_is(late, *word + dashes, len - dashes))
            log_warn("%.*s stands behind '%s', so it is an option of that; ours stand in "
                     "front of it",
                     (int)len, *word, opts->argv[0]);
    }
}

void opts_finish(struct opts *opts)
{
    strv_finish(&opts->export_env);
    strv_finish(&opts->passed);
    strv_finish(&opts->texts);
    strv_finish(&opts->interpreted);
    free(opts->interpreter);
    *opts = (struct opts){0};
}
