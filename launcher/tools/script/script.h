/* launcher/tools/script/script.h - a batch script for a program: --script, --submit
 *
 * options + site file -> request (checked) -> values -> template -> text. The text is a
 * pure function of its inputs, so that the same command always makes the same script.
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_SCRIPT_H
#define LAUNCHER_TOOLS_SCRIPT_SCRIPT_H

#include "launcher/opts.h"
#include "launcher/tools/script/python_env.h"
#include "launcher/tools/script/site.h"

/* What a script needs beside the options. All borrowed. */
struct script_place {
    const char *ddprun;                  /* its path; NULL: in the default PATH */
    const struct python_env *python_env; /* the Python environment to enter; NULL: none */
    const char *file;                    /* the script's path; NULL: not known */
    char *const *words; /* the command line, for the comment in the script */
};

struct script {
    struct site *site;  /* owned */
    char *text;         /* owned */
    struct strv submit; /* the command that reads it from stdin */
};

int script_make(const struct opts *opts, const struct script_place *place,
                struct script *s, struct ddp_err *err);
void script_finish(struct script *s);

/* --script and --submit: prints the script, or the number of the job. words[0] is
 * ddprun's path. */
int script_run(const struct opts *opts, char *const *words, struct ddp_err *err);

#endif
