/* launcher/cli/options.h - the table of options: names, argument, where it goes, how it
 * is read, what it means
 *
 * Private to the front: cli.c parses the command line and prints --help by it, the manual
 * is compared with it. A new option is a member of struct opts and a row in options.c.
 */
#ifndef LAUNCHER_CLI_OPTIONS_H
#define LAUNCHER_CLI_OPTIONS_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stddef.h>

struct option;

/* Reads `text` into the struct opts; `name` is how the user spelled the option. */
typedef int (*read_fn)(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err);

struct word {
    const char *text;
    int value;
};

struct option {
    const char *names; /* separated by blanks, no dashes; the first is the one shown */
    const char *arg;   /* NULL: takes none; "[=...]": only behind '='; "[...]": the next
                          word if   it is one of `words` */
    size_t at;         /* offset in struct opts */
    read_fn read;
    long min, max;            /* of a number */
    const struct word *words; /* of a choice, ended by a NULL text */
    const char *doc;
    enum {
        JOB_TOO,       /* in a script: for the ddprun of the job */
        HERE,          /* not for that one */
        SCRIPT_ONLY,   /* nor for a launch */
        NOT_IN_SCRIPT, /* for a launch only */
    } where;
};

/* A row without names begins a topic of --help: `arg` is its name. */
extern const struct option options[];
extern const size_t options_len;

#endif
