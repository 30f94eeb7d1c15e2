/* launcher/cli/words.h - parse the options at the front of a list of words
 *
 * The words are ddprun's command line, or were made from the lines of a file or from
 * variables (defaults.h). Private to launcher/cli/.
 */
#ifndef LAUNCHER_CLI_WORDS_H
#define LAUNCHER_CLI_WORDS_H

#include "common/strv.h"
#include "launcher/cli/options.h"

#include <stdbool.h>

/* Parser state. */
struct reading {
    char **argv;
    int argc, i; /* i: the current word */
    /* as spelled: the last one NOT_IN_SCRIPT, and SCRIPT_ONLY (readers.h); NULL: none */
    const char *hosts_option, *script_option;
    bool defaults;       /* these are not words of the command line */
    struct strv refused; /* messages about other launchers' options */
};

/* The option of `word`; `*value`: its argument in that word (--np=4, -n4), or NULL. */
const struct option *words_match(const char *word, const char **value);

/* Store option `o`, spelled `word`, with its value, NULL if it has none. */
int words_take(const struct option *o, const char *word, const char *value,
               struct opts *opts, struct ddp_err *err);

/* The next word, as the value of option `word`; NULL with an error if there is none. */
const char *words_next(struct reading *r, const char *word, const char *arg,
                       struct ddp_err *err);

/* Parse the options up to the program. Returns 1 after --help or --version. */
int words_read(struct reading *r, struct opts *opts, struct ddp_err *err);

/* "name=value" as an option of the command line, malloc'ed; NULL: a flag that is off. */
char *words_setting(const struct opts *opts, const char *setting);

#endif
