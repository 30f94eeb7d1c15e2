/* common/tail.c - see tail.h */
#include "common/tail.h"

#include "common/duration.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

/* bytes of a tail, and of all tails of a large job */
enum { TAIL_MOST = 4096, TAIL_LEAST = 512, TAILS_MOST = 64 << 20 };

size_t tail_size(size_t nstreams)
{
    size_t size = (size_t)TAILS_MOST / nstreams;
    return size > TAIL_MOST ? TAIL_MOST : size < TAIL_LEAST ? TAIL_LEAST : size;
}

/* Bytes that are kept. */
static size_t kept(const struct tail *t, size_t size)
{
    return t->nbytes < size ? (size_t)t->nbytes : size;
}

void tail_feed(struct tail *t, size_t size, const char *data, size_t n)
{
    size_t last = n < size ? n : size;
    if (!t->ring)
        t->ring = xcalloc(1, size);
    data += n - last;
    t->nbytes += n;
    t->fed_ms = now_ms();
    size_t end = (size_t)(t->nbytes % size);
    size_t behind = last < end ? last : end; /* of the new bytes, before `end` */
    memcpy(t->ring + end - behind, data + last - behind, behind);
    memcpy(t->ring + size - (last - behind), data, last - behind);
}

char *tail_lines(const struct tail *t, size_t size)
{
    size_t n = kept(t, size), end = (size_t)(t->nbytes % size);
    char *text = xcalloc(n + 1, 1);
    for (size_t i = 0; i < n; i++)
        text[i] = t->ring[(end + size - n + i) % size];
    size_t start = n, lines = 0;
    while (start > 0) {
        if (text[start - 1] == '\n' && start < n && ++lines == TAIL_LINES)
            break;
        start--;
    }
    if (start == 0 && t->nbytes > size) { /* the first line is truncated */
        const char *nl = memchr(text, '\n', n);
        if (nl && nl + 1 < text + n)
            start = (size_t)(nl + 1 - text);
    }
    memmove(text, text + start, n - start);
    text[n - start] = '\0';
    return text;
}

void tail_last_line(const struct tail *t, size_t size, char *line, size_t nline)
{
    size_t n = kept(t, size), start, len = 0;
    size_t end = (size_t)(t->nbytes % size) + size;
    while (n > 0 && strchr("\r\n ", t->ring[(end - 1) % size])) {
        end--;
        n--;
    }
    for (start = end; n > 0 && !strchr("\r\n", t->ring[(start - 1) % size]); n--)
        start--;
    for (; start < end && len + 1 < nline; start++)
        line[len++] = t->ring[start % size];
    line[len] = '\0';
}
