/* launcher/job/advice.c - see advice.h
 *
 * Only failures whose cause is certain from the exception, and that are not the
 * program's own. One that was caught is not why a rank failed, so only its last line
 * counts, as a whole.
 */
#include "launcher/job/advice.h"

#include "common/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define IN_NAMES "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."

static const struct {
    const char *line;
    bool named; /* a quoted name follows, also in what the Python `has` */
    const char *has, *advice;
} table[] = {
    /* often it is not the Python that the user meant */
    {"ModuleNotFoundError: No module named ", true, "has no module ",
     "activate the environment that has it, or give the path of its python"},
    {"RuntimeError: use_libuv was requested but PyTorch was build without libuv support",
     false, "has a PyTorch without libuv, as Debian 13's package is",
     "try 'ddprun --store rank0 -x USE_LIBUV=0', or pip's PyTorch"},
};

/* 'a.b' */
static bool is_quoted(const char *text)
{
    size_t n = *text == '\'' ? strspn(text + 1, IN_NAMES) : 0;
    return n > 0 && strcmp(text + 1 + n, "'") == 0;
}

char *advice_on(const char *last, const char *python)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        size_t n = strlen(table[i].line);
        bool same = strncmp(last, table[i].line, n) == 0;
        if (same && (table[i].named ? is_quoted(last + n) : last[n] == '\0'))
            return xasprintf("%s %s%s: %s", python, table[i].has, last + n,
                             table[i].advice);
    }
    return NULL;
}
