/* launcher/cli/spelling.c - see spelling.h */
#include "launcher/cli/spelling.h"

#include <string.h>

bool spelling_is(const char *names, const char *name, size_t len)
{
    for (const char *p = names; p && *p; p += strspn(p, " ")) {
        size_t n = strcspn(p, " "), i = 0;
        while (i < n && i < len && p[i] == (name[i] == '_' ? '-' : name[i]))
            i++;
        if ((i == n && i == len) || p[i] == '*')
            return true;
        p += n;
    }
    return false;
}
