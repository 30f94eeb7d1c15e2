/* launcher/tools/script/embedded.c - see embedded.h; the table itself is made by embed.py
 */
#include "launcher/tools/script/embedded.h"

#include <string.h>

const char *embedded_text(const char *name)
{
    for (size_t i = 0; i < embedded_len; i++) {
        if (strcmp(embedded[i].name, name) == 0)
            return embedded[i].text;
    }
    return NULL;
}
