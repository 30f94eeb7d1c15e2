/* launcher/cli/readers.h - an option, and how its value gets into struct opts
 *
 * A reader stores the value at the offset in the option's row of options.c, or, where the
 * row has none, in the members that it is for.
 */
#ifndef LAUNCHER_CLI_READERS_H
#define LAUNCHER_CLI_READERS_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stddef.h>

struct option;

/* Parses `text` into `opts`; `name` is the option as the user spelled it. */
typedef int read_fn(const struct option *o, const char *name, const char *text,
                    struct opts *opts, struct ddp_err *err);

struct word {
    const char *text;
    int value;
};

struct option {
    const char *names; /* separated by blanks, no dashes; the first is the one shown */
    const char *arg; /* NULL: none; "[=...]": optional, after '=' only; "[...]": optional,
                        the next word if it is one of `words`, or, without words, a PORT
                        or ADDRESS:PORT */
    size_t at;       /* offset in struct opts */
    read_fn *read;
    int min, max;             /* of a number */
    const struct word *words; /* of a choice; ends with a NULL text */
    const char *doc;
    enum {
        JOB_TOO,       /* with --script: passed to the ddprun in the job */
        HERE,          /* with --script: not passed on */
        SCRIPT_ONLY,   /* with --script only */
        NOT_IN_SCRIPT, /* not with --script */
    } where;
    bool once; /* given twice on a command line it is an error */
};

read_fn read_number, read_per_node, read_nnodes, read_walltime, read_memory, read_requeue,
    read_plain, read_text, read_command, read_url, read_flag, read_span, read_choice,
    read_map_by, read_bind_to, read_one_gpu, read_export, read_rank_names, read_hosts,
    read_include, read_as_late, read_modules, read_no_preload, read_no_pty, read_ranks,
    read_master, read_hang_after, read_stragglers, read_events, read_ui, read_metrics,
    read_regex;

#endif
