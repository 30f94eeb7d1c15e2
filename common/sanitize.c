/* common/sanitize.c - see sanitize.h */
#include "common/sanitize.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

char *sanitize_all(char *text)
{
    for (char *p = text; *p; p++) {
        if (iscntrl((unsigned char)*p))
            *p = '?';
    }
    return text;
}

const char *sanitize(const char *text, struct sanitized *out)
{
    size_t n = strlen(text), most = sizeof out->text - sizeof "...";
    bool cut = n > most;
    n = cut ? most : n;
    for (size_t i = 0; i < n; i++)
        out->text[i] = text[i];
    strcpy(out->text + n, cut ? "..." : "");
    return sanitize_all(out->text);
}
