/* common/hostlist.c - see hostlist.h
 *
 * A term is split into text, a bracket of ranges, text, ... The names are enumerated like
 * an odometer, with one digit per bracket.
 */
#include "common/hostlist.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/sanitize.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BRACKETS_MAX 8
#define DIGITS_MAX   18 /* fits a long */

struct range {
    long lo, hi;
    int width;
};

struct bracket {
    const char *before; /* text before it, borrowed */
    size_t before_len;
    struct range *ranges; /* owned */
    size_t nranges, room;
    size_t which; /* current position: range, and number in it */
    long value;
};

struct term {
    struct bracket b[BRACKETS_MAX];
    int nbrackets;
    const char *tail;
    size_t tail_len;
    long count;
};

/* A parser's position in the term; `p` is where an error is reported. */
struct scan {
    const char *p, *end;
    struct ddp_err *err;
};

static int digits(struct scan *s, long *value, int *width)
{
    const char *start = s->p;
    *value = 0;
    while (s->p < s->end && isdigit((unsigned char)*s->p)) {
        if (s->p - start >= DIGITS_MAX)
            return err_set(s->err, "a number of more than %d digits", DIGITS_MAX);
        *value = *value * 10 + (*s->p++ - '0');
    }
    *width = (int)(s->p - start);
    if (*width == 0 && s->p < s->end && isprint((unsigned char)*s->p))
        return err_set(s->err, "a number is wanted here, not '%s'",
                       SANITIZED(((char[]){*s->p, 0})));
    return *width ? 0 : err_set(s->err, "a number is wanted here");
}

static int scan_range(struct scan *s, struct bracket *b)
{
    const char *start = s->p;
    struct range r;
    int unused;
    if (digits(s, &r.lo, &r.width) < 0)
        return -1;
    r.hi = r.lo;
    if (s->p < s->end && *s->p == '-') {
        s->p++;
        if (digits(s, &r.hi, &unused) < 0)
            return -1;
    }
    if (r.hi < r.lo || r.hi - r.lo >= HOSTLIST_RANGE_MAX) {
        s->p = start;
        return r.hi < r.lo
                   ? err_set(s->err, "the range counts down from %ld to %ld", r.lo, r.hi)
                   : err_set(s->err, "a range of %ld names; at most %d are allowed",
                             r.hi - r.lo + 1, HOSTLIST_RANGE_MAX);
    }
    b->ranges = xroom(b->ranges, b->nranges, &b->room, sizeof *b->ranges);
    b->ranges[b->nranges++] = r;
    return 0;
}

/* Parse from after '[' to after ']'. */
static int scan_bracket(struct scan *s, struct bracket *b, long *names)
{
    const char *open = s->p - 1;
    for (;;) {
        if (scan_range(s, b) < 0)
            return -1;
        const struct range *r = &b->ranges[b->nranges - 1];
        *names += r->hi - r->lo + 1;
        if (s->p == s->end) {
            s->p = open;
            return err_set(s->err, "'[' is never closed");
        }
        if (*s->p == ']')
            break;
        if (*s->p != ',')
            return err_set(s->err, "'%s' inside brackets; numbers, '-' and ',' only",
                           SANITIZED(((char[]){*s->p, 0})));
        s->p++;
    }
    s->p++;
    return 0;
}

static int scan_term(struct scan *s, struct term *t)
{
    const char *start = s->p, *text = s->p;
    t->count = 1;
    for (; s->p < s->end; s->p++) {
        if (*s->p == ']')
            return err_set(s->err, "']' without '['");
        if (*s->p != '[')
            continue;
        if (t->nbrackets == BRACKETS_MAX)
            return err_set(s->err, "more than %d brackets in one name", BRACKETS_MAX);
        struct bracket *b = &t->b[t->nbrackets++];
        b->before = text;
        b->before_len = (size_t)(s->p++ - text);
        long names = 0;
        if (scan_bracket(s, b, &names) < 0)
            return -1;
        text = s->p--;
        if (names > HOSTLIST_MAX / t->count) {
            s->p = start;
            return err_set(s->err, "more than %d names in one word", HOSTLIST_MAX);
        }
        t->count *= names;
        b->value = b->ranges[0].lo;
    }
    t->tail = text;
    t->tail_len = (size_t)(s->end - text);
    return 0;
}

/* Advance one bracket; true when it has wrapped. */
static bool advance(struct bracket *b)
{
    if (b->value < b->ranges[b->which].hi) {
        b->value++;
        return false;
    }
    b->which = (b->which + 1) % b->nranges;
    b->value = b->ranges[b->which].lo;
    return b->which == 0;
}

static char *name_of(const struct term *t, size_t room)
{
    char *name = xcalloc(room, 1), *p = name;
    for (int i = 0; i < t->nbrackets; i++) {
        const struct bracket *b = &t->b[i];
        p = mempcpy(p, b->before, b->before_len);
        p += sprintf(p, "%0*ld", b->ranges[b->which].width, b->value);
    }
    memcpy(p, t->tail, t->tail_len);
    return name;
}

static void expand(struct term *t, size_t len, struct strv *names)
{
    for (long i = 0; i < t->count; i++) {
        strv_push_nodup(names,
                        name_of(t, len + (size_t)t->nbrackets * (DIGITS_MAX + 2) + 1));
        int last = t->nbrackets - 1, digit = 0;
        if (last < 0 || !advance(&t->b[last]))
            continue;
        while (digit < last && advance(&t->b[digit]))
            digit++;
    }
}

int hostlist_term(const char *text, size_t len, struct strv *names, size_t *at,
                  struct ddp_err *err)
{
    struct term t = {0};
    struct scan s = {text, text + len, err};
    int rc = scan_term(&s, &t);
    if (rc == 0)
        expand(&t, len, names);
    *at = (size_t)(s.p - text);
    for (int i = 0; i < t.nbrackets; i++)
        free(t.b[i].ranges);
    return rc;
}

int hostlist_expand(const char *text, struct strv *names, struct ddp_err *err)
{
    static const char separators[] = ", \t\r\n";
    const char *p = text;
    while (*(p += strspn(p, separators))) {
        size_t len = 0, at;
        for (bool inside = false; p[len] && (inside || !strchr(separators, p[len]));
             len++)
            inside = p[len] == '[' || (inside && p[len] != ']');
        if (hostlist_term(p, len, names, &at, err) < 0)
            return err_prefix(err, "'%s': column %zu", SANITIZED(text),
                              (size_t)(p - text) + at + 1);
        p += len;
    }
    return 0;
}

/* The last run of digits of `name`: its offset and length; false when there is none, or
 * it is too long for an integer. */
static bool last_number(const char *name, size_t *at, size_t *len)
{
    size_t end = strlen(name);
    while (end > 0 && !isdigit((unsigned char)name[end - 1]))
        end--;
    *at = end;
    while (*at > 0 && isdigit((unsigned char)name[*at - 1]))
        --*at;
    *len = end - *at;
    return *len > 0 && *len <= DIGITS_MAX;
}

/* Do a and b differ only in their last number, and does one width format both? */
static bool siblings(const char *a, const char *b, size_t *at, size_t *alen, size_t *blen)
{
    size_t bat;
    if (!last_number(a, at, alen) || !last_number(b, &bat, blen) || *at != bat)
        return false;
    bool padded = a[*at] == '0' || b[*at] == '0';
    return strncmp(a, b, *at) == 0 && strcmp(a + *at + *alen, b + *at + *blen) == 0 &&
           (*alen == *blen || !padded);
}

char *hostlist_compress(char *const *names, size_t n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = xmemstream(&text, &size);
    for (size_t i = 0, next; i < n; i = next) {
        size_t at = 0, len = 0, other;
        next = i + 1;
        while (next < n && siblings(names[i], names[next], &at, &len, &other))
            next++;
        fputs(i ? "," : "", out);
        if (next == i + 1) {
            fputs(names[i], out);
            continue;
        }
        last_number(names[i], &at, &len);
        fprintf(out, "%.*s[", (int)at, names[i]);
        for (size_t k = i, stop; k < next; k = stop) {
            long first = atol(names[k] + at);
            for (stop = k + 1; stop < next; stop++) {
                if (atol(names[stop] + at) != first + (long)(stop - k))
                    break;
            }
            last_number(names[k], &at, &len);
            fprintf(out, "%s%.*s", k > i ? "," : "", (int)len, names[k] + at);
            if (stop > k + 1) {
                last_number(names[stop - 1], &at, &other);
                fprintf(out, "-%.*s", (int)other, names[stop - 1] + at);
            }
        }
        last_number(names[i], &at, &len);
        fprintf(out, "]%s", names[i] + at + len);
    }
    xmemclose(out);
    return text;
}
