/* tests/launcher/words.h - command lines as texts */
#ifndef TESTS_LAUNCHER_WORDS_H
#define TESTS_LAUNCHER_WORDS_H

#include "launcher/cli/cli.h"

#include <stdio.h>
#include <string.h>

/* Parses `line`, split at blanks; the words live until the next call. */
static inline int parse_words(const char *line, struct opts *o, struct ddp_err *err)
{
    static char *argv[64];
    static char copy[512];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    argv[argc] = NULL;
    *err = (struct ddp_err){""};
    return cli_parse(argc, argv, o, err);
}

#endif
