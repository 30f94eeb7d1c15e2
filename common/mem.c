/* common/mem.c - see mem.h */
#include "common/mem.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must_have(void *p, double bytes)
{
    if (!p) {
        fprintf(stderr, "%s: out of memory: cannot allocate %.1f MiB\n",
                program_invocation_short_name, bytes / 0x1p20);
        abort();
    }
    return p;
}

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "%s: out of memory\n", program_invocation_short_name);
        abort();
    }
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    return must_have(calloc(n ? n : 1, size ? size : 1), (double)n * (double)size);
}

void *xaligned(size_t alignment, size_t bytes)
{
    return memset(must_have(aligned_alloc(alignment, bytes), (double)bytes), 0, bytes);
}

void *xrealloc(void *p, size_t n, size_t size)
{
    return must_have(reallocarray(p, n ? n : 1, size), (double)n * (double)size);
}

void *xgrow(void *p, size_t from, size_t n, size_t size)
{
    p = xrealloc(p, n, size);
    memset((char *)p + from * size, 0, (n - from) * size);
    return p;
}

void *xroom(void *p, size_t n, size_t *room, size_t size)
{
    enum { FIRST = 16 };
    if (n < *room)
        return p;
    *room = *room ? *room * 2 : FIRST;
    return xrealloc(p, *room, size);
}

char *xstrdup(const char *s)
{
    return s ? must(strdup(s)) : NULL;
}

char *xstrndup(const char *s, size_t n)
{
    return must(strndup(s, n));
}

void *xmemdup(const void *p, size_t n)
{
    return memcpy(must(malloc(n ? n : 1)), p, n);
}

char *xvasprintf(const char *fmt, va_list ap)
{
    char *s = NULL;
    return must(vasprintf(&s, fmt, ap) < 0 ? NULL : s);
}

char *xasprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = xvasprintf(fmt, ap);
    va_end(ap);
    return s;
}

void xappendf(char **text, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    OWNED char *more = xvasprintf(fmt, ap);
    va_end(ap);
    size_t n = *text ? strlen(*text) : 0;
    *text = xrealloc(*text, n + strlen(more) + 1, 1);
    strcpy(*text + n, more);
}

FILE *xmemstream(char **text, size_t *size)
{
    return must(open_memstream(text, size));
}

void xmemclose(FILE *f)
{
    if (fclose(f) != 0)
        must(NULL);
}

void mem_init(void)
{
    mallopt(M_ARENA_MAX, 1);
}
