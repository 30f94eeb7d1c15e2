/* common/idset.c - see idset.h
 *
 * A sorted array of spans. Adding at the end, as parsing and counting up do, is O(1);
 * elsewhere it moves the tail.
 */
#include "common/idset.h"

#include "common/err.h"
#include "common/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first span that ends at `id` - 1 or later: it contains `id`, or would be merged
 * with it. */
static size_t find(const struct idset *set, int id)
{
    size_t lo = 0, hi = set->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (set->spans[mid].hi < id - 1)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void idset_add(struct idset *set, int lo, int hi)
{
    assert(lo >= 0 && lo <= hi && hi <= IDSET_MAX);
    size_t at = find(set, lo), end = at;
    while (end < set->n && set->spans[end].lo <= hi + 1) {
        lo = set->spans[end].lo < lo ? set->spans[end].lo : lo;
        hi = set->spans[end].hi > hi ? set->spans[end].hi : hi;
        end++;
    }
    set->spans = xroom(set->spans, set->n, &set->room, sizeof *set->spans);
    memmove(set->spans + at + 1, set->spans + end, (set->n - end) * sizeof *set->spans);
    set->n = set->n - (end - at) + 1;
    set->spans[at] = (struct idspan){lo, hi};
}

bool idset_has(const struct idset *set, int id)
{
    for (size_t at = find(set, id); at < set->n && set->spans[at].lo <= id; at++) {
        if (set->spans[at].hi >= id)
            return true;
    }
    return false;
}

long idset_count(const struct idset *set)
{
    long count = 0;
    for (size_t i = 0; i < set->n; i++)
        count += set->spans[i].hi - set->spans[i].lo + 1;
    return count;
}

char *idset_text(const struct idset *set)
{
    char *text = xcalloc(set->n * 24 + 1, 1), *end = text;
    for (size_t i = 0; i < set->n; i++) {
        const struct idspan *s = &set->spans[i];
        end += sprintf(end, i ? ",%d" : "%d", s->lo);
        if (s->hi > s->lo)
            end += sprintf(end, "-%d", s->hi);
    }
    return text;
}

void idset_finish(struct idset *set)
{
    free(set->spans);
    *set = (struct idset){0};
}

/* Parse a decimal number at *p, which moves behind it; -1 when there is none or it is too
 * large. */
static int number(const char **p)
{
    long n = 0;
    const char *start = *p;
    for (; **p >= '0' && **p <= '9'; ++*p) {
        n = n * 10 + (**p - '0');
        if (n > IDSET_MAX) {
            *p = start;
            break;
        }
    }
    return *p > start ? (int)n : -1;
}

int idset_parse(const char *text, struct idset *set, struct ddp_err *err)
{
    const char *p = text, *start;
    do {
        p += strspn(p, " \t");
        start = p;
        int lo = number(&p), hi = lo;
        if (lo >= 0 && *p == '-') {
            p++;
            hi = number(&p);
        }
        if (lo < 0 || hi < 0)
            return err_set(err, "'%s': column %td: a number from 0 to %d is missing",
                           text, p - text + 1, IDSET_MAX);
        if (hi < lo)
            return err_set(err, "'%s': column %td: %d-%d counts down", text,
                           start - text + 1, lo, hi);
        p += strspn(p, " \t");
        if (*p && *p != ',')
            return err_set(err, "'%s': column %td: '%c' is neither a number nor a comma",
                           text, p - text + 1, *p);
        idset_add(set, lo, hi);
    } while (*p++ == ',');
    return 0;
}
