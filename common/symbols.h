/* common/symbols.h - the functions of a library that is loaded at run time */
#ifndef COMMON_SYMBOLS_H
#define COMMON_SYMBOLS_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

struct symbol {
    const char *name;
    void *to; /* of a pointer to a function: set to the library's, NULL if it has none */
};

/* Returns the name of one that the library does not have, or NULL. */
static inline const char *symbols_find(void *library, const struct symbol *symbols,
                                       size_t n)
{
    const char *missing = NULL;
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, symbols[i].name);
        memcpy(symbols[i].to, &found, sizeof found);
        missing = found ? missing : symbols[i].name;
    }
    return missing;
}

#endif
