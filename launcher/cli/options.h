/* launcher/cli/options.h - the table of options
 *
 * Private to launcher/cli/: the parser and --help use it, a test compares the manual with
 * it. A new option is a member of struct opts and a row in options.c.
 */
#ifndef LAUNCHER_CLI_OPTIONS_H
#define LAUNCHER_CLI_OPTIONS_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stddef.h>

struct option;

/* Parses `text` into `opts`; `name` is the option as the user spelled it. */
typedef int (*read_fn)(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err);

struct word {
    const char *text;
    int value;
};

struct option {
    const char *names; /* separated by blanks, no dashes; the first is the one shown */
    const char *arg; /* NULL: none; "[=...]": optional, after '=' only; "[...]": optional,
                        the next word if it is one of `words` */
    size_t at;       /* offset in struct opts */
    read_fn read;
    long min, max;            /* of a number */
    const struct word *words; /* of a choice; ends with a NULL text */
    const char *doc;
    enum {
        JOB_TOO,       /* with --script: passed to the ddprun in the job */
        HERE,          /* with --script: not passed on */
        SCRIPT_ONLY,   /* with --script only */
        NOT_IN_SCRIPT, /* not with --script */
    } where;
};

/* A row without names begins a --help topic with the name `arg`. */
extern const struct option options[];
extern const size_t options_len;

#endif
