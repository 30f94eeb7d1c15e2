/* launcher/tools/script/words.c - see words.h */
#include "launcher/tools/script/words.h"

#include "common/mem.h"
#include "common/strv.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

char *script_quote(const char *word)
{
    const char *p = word;
    while (*p && !iscntrl((unsigned char)*p))
        p++;
    if (!*p)
        return shell_quote(word);
    char *out = xcalloc(strlen(word) * 4 + 4, 1), *o = stpcpy(out, "$'");
    for (; *word; word++) {
        if (*word == '\'' || *word == '\\')
            o += sprintf(o, "\\%c", *word);
        else if (iscntrl((unsigned char)*word))
            o += sprintf(o, "\\%03o", (unsigned char)*word);
        else
            *o++ = *word;
    }
    *o++ = '\'';
    return out;
}

char *script_quote_all(char *const *words)
{
    char *text = xstrdup("");
    for (; words && *words; words++) {
        OWNED char *q = script_quote(*words);
        xappendf(&text, "%s%s", *text ? " " : "", q);
    }
    return text;
}
