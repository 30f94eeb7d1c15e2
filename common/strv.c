/* common/strv.c - see strv.h */
#include "common/strv.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strv_reserve(struct strv *s, size_t n, size_t nbytes)
{
    s->room = n + 1;
    s->v = xcalloc(s->room, sizeof *s->v);
    s->block = xcalloc(1, nbytes);
    s->reserve = nbytes;
}

static char *allocate(struct strv *s, size_t nbytes)
{
    if (nbytes > s->reserve - s->used)
        return xcalloc(1, nbytes);
    char *p = s->block + s->used;
    s->used += nbytes;
    return p;
}

static void release(const struct strv *s, char *str)
{
    if (!s->block || str < s->block || str >= s->block + s->reserve)
        free(str);
}

void strv_push_nodup(struct strv *s, char *str)
{
    s->v = xroom(s->v, s->n + 1, &s->room, sizeof *s->v);
    s->v[s->n++] = str;
    s->v[s->n] = NULL;
}

void strv_push(struct strv *s, const char *str)
{
    size_t nbytes = str ? strlen(str) + 1 : 0;
    strv_push_nodup(s, str ? memcpy(allocate(s, nbytes), str, nbytes) : NULL);
}

void strv_pushf(struct strv *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    strv_push_nodup(s, xvasprintf(fmt, ap));
    va_end(ap);
}

void strv_push_all(struct strv *s, char *const *strs)
{
    for (; strs && *strs; strs++)
        strv_push(s, *strs);
}

void strv_finish(struct strv *s)
{
    for (size_t i = 0; i < s->n; i++)
        release(s, s->v[i]);
    free(s->v);
    free(s->block);
    *s = (struct strv){0};
}

bool strv_has(const struct strv *s, const char *str, size_t len)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strncmp(s->v[i], str, len) == 0 && s->v[i][len] == '\0')
            return true;
    }
    return false;
}

/* Its index, or s->n. */
static size_t find_name(const struct strv *s, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < s->n; i++) {
        const char *entry = s->v[i];
        if (*entry == *name && strncmp(entry, name, len) == 0 && entry[len] == '=')
            return i;
    }
    return s->n;
}

const char *strv_env_get(const struct strv *s, const char *name)
{
    size_t i = find_name(s, name);
    return i < s->n ? s->v[i] + strlen(name) + 1 : NULL;
}

void strv_env_push(struct strv *s, const char *name, const char *value)
{
    char *entry = allocate(s, strlen(name) + strlen(value) + 2);
    stpcpy(stpcpy(stpcpy(entry, name), "="), value);
    strv_push_nodup(s, entry);
}

void strv_env_set(struct strv *s, const char *name, const char *value)
{
    size_t i = find_name(s, name);
    if (value && i == s->n) {
        strv_env_push(s, name, value);
    } else if (value) {
        char *entry = xasprintf("%s=%s", name, value);
        release(s, s->v[i]);
        s->v[i] = entry;
    } else if (i < s->n) {
        release(s, s->v[i]);
        memmove(&s->v[i], &s->v[i + 1], (s->n - i) * sizeof *s->v);
        s->n--;
    }
}

void strv_env_set_all(struct strv *s, const struct strv *entries)
{
    for (size_t i = 0; i < entries->n; i++) {
        OWNED char *name = xstrdup(entries->v[i]);
        char *eq = strchr(name, '=');
        if (eq) {
            *eq = '\0';
            strv_env_set(s, name, eq + 1);
        }
    }
}

bool strv_env_match(const char *pattern, const char *name, size_t len)
{
    size_t n = strlen(pattern);
    if (pattern[n - 1] == '*')
        return len >= n - 1 && memcmp(pattern, name, n - 1) == 0;
    return n == len && memcmp(pattern, name, n) == 0;
}

char *shell_quote(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_@%+=:,./-";
    if (*word && word[strspn(word, plain)] == '\0')
        return xstrdup(word);
    char *out = xcalloc(strlen(word) * 4 + 3, 1), *o = out;
    *o++ = '\'';
    for (; *word; word++) {
        if (*word == '\'')
            o = stpcpy(o, "'\\''");
        else
            *o++ = *word;
    }
    *o++ = '\'';
    return out;
}

char *shell_join(char *const *words)
{
    char *out = xstrdup("");
    for (size_t i = 0; words && words[i]; i++) {
        OWNED char *q = shell_quote(words[i]);
        xappendf(&out, "%s%s", i ? " " : "", q);
    }
    return out;
}
