/* worker/cuda/autotune_table.c - see autotune_table.h */
#include "worker/cuda/autotune_table.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char version[] = "1 ";

static struct autotune_row *find(const struct autotune_table *c, const char *key)
{
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->of[i].key, key) == 0)
            return &c->of[i];
    }
    return NULL;
}

const char *autotune_table_find(const struct autotune_table *c, const char *key)
{
    const struct autotune_row *found = find(c, key);
    return found ? found->name : NULL;
}

void autotune_table_set(struct autotune_table *c, const char *key, const char *name,
                        double gain)
{
    struct autotune_row *found = find(c, key);
    if (!found) {
        c->of = xrealloc(c->of, c->n + 1, sizeof *c->of);
        found = &c->of[c->n++];
        *found = (struct autotune_row){.key = xstrdup(key)};
    }
    char *copy = xstrdup(name); /* `name` may be the old one's memory */
    free(found->name);
    found->name = copy;
    found->gain = gain;
}

void autotune_table_clear(struct autotune_table *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->of[i].key);
        free(c->of[i].name);
    }
    free(c->of);
    *c = (struct autotune_table){.n = 0};
}

char *autotune_table_write(const struct autotune_table *c, const char *header)
{
    size_t size = sizeof version + strlen(header), used;
    for (size_t i = 0; i < c->n; i++)
        size += strlen(c->of[i].key) + strlen(c->of[i].name) + 2;
    char *text = xcalloc(size, 1);
    used = (size_t)snprintf(text, size, "%s%s", version, header);
    for (size_t i = 0; i < c->n; i++)
        used += (size_t)snprintf(text + used, size - used, ";%s=%s", c->of[i].key,
                                 c->of[i].name);
    return text;
}

bool autotune_table_read(struct autotune_table *c, const char *text,
                         char header[AUTOTUNE_HEADER])
{
    size_t skip = sizeof version - 1, n = strcspn(text, ";");
    autotune_table_clear(c);
    if (strncmp(text, version, skip) != 0 || n - skip >= AUTOTUNE_HEADER)
        return false;
    snprintf(header, AUTOTUNE_HEADER, "%.*s", (int)(n - skip), text + skip);
    for (text += n; *text == ';'; text += n) {
        text++;
        n = strcspn(text, ";");
        size_t key = strcspn(text, "=");
        if (key == 0 || key + 1 >= n || key >= AUTOTUNE_KEY) {
            autotune_table_clear(c);
            return false;
        }
        char *copy = xstrndup(text, n);
        copy[key] = '\0';
        autotune_table_set(c, copy, copy + key + 1, 0);
        free(copy);
    }
    return true;
}
