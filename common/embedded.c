/* common/embedded.c - see embedded.h */
#include "common/embedded.h"

#include <string.h>

const char *embedded_text(const struct embedded *table, const char *name)
{
    while (table->name && strcmp(table->name, name) != 0)
        table++;
    return table->text;
}
