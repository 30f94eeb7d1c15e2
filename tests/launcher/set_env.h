/* tests/launcher/set_env.h - environments as texts */
#ifndef TESTS_LAUNCHER_SET_ENV_H
#define TESTS_LAUNCHER_SET_ENV_H

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

/* "A=1 B=2": no blanks in values. */
static inline void set_all(const char *env)
{
    clearenv();
    char *copy = xstrdup(env), *save = NULL;
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '=');
        *eq = '\0';
        setenv(w, eq + 1, 1);
    }
    free(copy);
}

#endif
