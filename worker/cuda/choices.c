/* worker/cuda/choices.c - see choices.h */
#include "worker/cuda/choices.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char version[] = "1 ";

static struct choice *find(const struct choices *c, const char *key)
{
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->of[i].key, key) == 0)
            return &c->of[i];
    }
    return NULL;
}

const char *choices_find(const struct choices *c, const char *key)
{
    const struct choice *found = find(c, key);
    return found ? found->name : NULL;
}

void choices_set(struct choices *c, const char *key, const char *name, double gain)
{
    struct choice *found = find(c, key);
    if (!found) {
        c->of = xrealloc(c->of, c->n + 1, sizeof *c->of);
        found = &c->of[c->n++];
        *found = (struct choice){.key = xstrdup(key)};
    }
    char *copy = xstrdup(name); /* it may be the name that goes */
    free(found->name);
    found->name = copy;
    found->gain = gain;
}

void choices_clear(struct choices *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->of[i].key);
        free(c->of[i].name);
    }
    free(c->of);
    *c = (struct choices){.n = 0};
}

char *choices_write(const struct choices *c, const char *header)
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

bool choices_read(struct choices *c, const char *text, char header[CHOICE_HEADER])
{
    size_t skip = sizeof version - 1, n = strcspn(text, ";");
    choices_clear(c);
    if (strncmp(text, version, skip) != 0 || n - skip >= CHOICE_HEADER)
        return false;
    snprintf(header, CHOICE_HEADER, "%.*s", (int)(n - skip), text + skip);
    for (text += n; *text == ';'; text += n) {
        text++;
        n = strcspn(text, ";");
        size_t key = strcspn(text, "=");
        if (key == 0 || key + 1 >= n || key >= CHOICE_KEY) {
            choices_clear(c);
            return false;
        }
        char *copy = xstrndup(text, n);
        copy[key] = '\0';
        choices_set(c, copy, copy + key + 1, 0);
        free(copy);
    }
    return true;
}
