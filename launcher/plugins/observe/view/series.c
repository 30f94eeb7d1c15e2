/* launcher/plugins/observe/view/series.c - see series.h
 *
 * A full series drops every second point, and then takes every second new one; its last
 * point is always the newest.
 */
#include "launcher/plugins/observe/view/series.h"

#include "common/err.h"
#include "common/mem.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

enum { POINTS_MAX = 2048, SERIES_MAX = 64, NAME_SIZE = 64, LINE_SIZE = 4096 };

struct one {
    char name[NAME_SIZE];
    struct point points[POINTS_MAX];
    size_t n, every, skipped, rank;
    struct one *next;
};

struct series {
    regex_t *pattern; /* owned; NULL: lines with "loss" */
    struct one *all;  /* owned */
    size_t n;
};

struct series *series_create(const char *pattern, struct ddp_err *err)
{
    struct series *s = xcalloc(1, sizeof *s);
    if (!pattern)
        return s;
    s->pattern = xcalloc(1, sizeof *s->pattern);
    int rc = regcomp(s->pattern, pattern, REG_EXTENDED | REG_NOSUB);
    if (rc == 0)
        return s;
    char why[160];
    regerror(rc, s->pattern, why, sizeof why);
    err_set(err, "--metric '%.80s': %s", pattern, why);
    free(s->pattern);
    free(s);
    return NULL;
}

void series_destroy(struct series *s)
{
    struct one *o, *next;
    LL_FOREACH_SAFE(s->all, o, next)
    free(o);
    if (s->pattern)
        regfree(s->pattern);
    free(s->pattern);
    free(s);
}

static void halve(struct one *o)
{
    for (size_t i = 0; i < o->n / 2; i++)
        o->points[i] = o->points[2 * i];
    o->n /= 2;
    o->every *= 2;
}

/* Plain in JSON, and in the text of metrics. */
static void copy_name(char plain[NAME_SIZE], const char *name)
{
    size_t n = 0;
    for (; name[n] && n + 1 < NAME_SIZE; n++)
        plain[n] =
            isprint((unsigned char)name[n]) && !strchr("\"\\", name[n]) ? name[n] : '_';
    plain[n] = '\0';
}

void series_add(struct series *s, size_t rank, const char *name, double t, double value)
{
    struct one *o;
    char plain[NAME_SIZE];
    copy_name(plain, name);
    LL_FOREACH (s->all, o) {
        if (strcmp(o->name, plain) == 0)
            break;
    }
    if (!o && s->n >= SERIES_MAX)
        return;
    if (!o) {
        o = xcalloc(1, sizeof *o);
        memcpy(o->name, plain, sizeof plain);
        o->every = 1;
        o->rank = rank;
        s->n++;
        LL_APPEND(s->all, o);
    }
    if (rank > o->rank)
        return;
    if (rank < o->rank) { /* it has printed the name later */
        o->rank = rank;
        o->n = 0;
    }
    if (o->n > 0 && ++o->skipped < o->every) { /* replaces the last point */
        o->points[o->n - 1] = (struct point){t, value};
        return;
    }
    o->skipped = 0;
    if (o->n == POINTS_MAX)
        halve(o);
    o->points[o->n++] = (struct point){t, value};
}

bool series_get(const struct series *s, size_t i, const char **name,
                const struct point **points, size_t *npoints)
{
    const struct one *o = s->all;
    while (o && i-- > 0)
        o = o->next;
    if (!o)
        return false;
    *name = o->name;
    *points = o->points;
    *npoints = o->n;
    return true;
}

/* --- lines -------------------------------------------------------------------------- */

static size_t word_length(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || (n > 0 && strchr("_./-", p[n]) && p[n]) ||
           p[n] == '_')
        n++;
    return n && (isalpha((unsigned char)*p) || *p == '_') ? n : 0;
}

/* The groups of three digits behind "1": "1,234,567.8". Returns their end. */
static char *read_groups(const char *p, char *end, double *value)
{
    static const char digits[] = "0123456789";
    size_t n = strspn(p, digits);
    if (*p == '0' || n == 0 || n > 3 || end != p + n)
        return end;
    for (; *end == ',' && strspn(end + 1, digits) == 3; end += 4)
        *value = *value * 1000 + atoi(end + 1);
    if (end != p + n && *end == '.')
        *value += strtod(end, &end);
    return end;
}

/* A number that ends at a word boundary; NULL: none. */
static const char *read_value(const char *p, double *value)
{
    char *end;
    bool plain =
        isdigit((unsigned char)*p) ||
        (*p && strchr("+-.", *p) && (isdigit((unsigned char)p[1]) || p[1] == '.'));
    bool special = strncasecmp(p, "nan", 3) == 0 || strncasecmp(p, "inf", 3) == 0 ||
                   strncasecmp(p, "-inf", 4) == 0;
    if (!*p || (!plain && !special))
        return NULL;
    *value = strtod(p, &end);
    end = read_groups(p, end, value);
    return end > p && !isalpha((unsigned char)*end) && *end != '_' ? end : NULL;
}

/* Behind a name: quotes, blanks, and one '=' or ':'; a quote in front of the value. */
static const char *skip_glue(const char *p)
{
    p += strspn(p, "'\"");
    p += strspn(p, " \t");
    p += *p == '=' || *p == ':';
    p += strspn(p, " \t");
    return p + strspn(p, "'\"");
}

/* "20/100" behind "step" or "epoch". */
static const char *read_total(struct series *s, size_t rank, const char *p, double t,
                              double value)
{
    double total;
    const char *end = *p == '/' ? read_value(p + 1, &total) : NULL;
    if (!end)
        return p;
    if (total > 0 && value >= 0 && value <= total)
        series_add(s, rank, "progress", t, value / total);
    return end;
}

static void read_pairs(struct series *s, size_t rank, const char *p, double t)
{
    char name[NAME_SIZE] = "";
    double value;
    while (*p) {
        size_t n = word_length(p);
        if (n > 0) {
            char before[NAME_SIZE];
            memcpy(before, name, sizeof before);
            snprintf(name, sizeof name, "%.20s%s%.*s", before, *before ? "_" : "",
                     n < 40 ? (int)n : 40, p);
            const char *at = skip_glue(p + n), *end = read_value(at, &value);
            if (end) {
                series_add(s, rank, name, t, value);
                p = read_total(s, rank, end, t, value);
                *name = '\0';
            } else { /* the next word may belong to the name */
                bool joins = p[n] == ' ' && word_length(p + n + 1) > 0;
                snprintf(name, sizeof name, "%.*s", joins ? (n < 20 ? (int)n : 20) : 0,
                         p);
                p += n;
            }
            continue;
        }
        *name = *p == ' ' ? *name : '\0';
        const char *end = read_value(p, &value);
        p = end ? end + strspn(end, " ") : p + 1;
        size_t unit = end ? word_length(p) : 0;
        if (unit > 2 && unit < sizeof name && memcmp(p + unit - 2, "/s", 2) == 0) {
            snprintf(name, sizeof name, "%.*s", (int)unit, p);
            series_add(s, rank, name, t, value);
            *name = '\0';
            p += unit;
        }
    }
}

/* Without colours: ESC [ ... m. */
static void copy_plain(const char *line, size_t size, char text[LINE_SIZE])
{
    size_t n = 0;
    for (size_t i = 0; i < size && n + 1 < LINE_SIZE; i++) {
        if (line[i] != '\033' || i + 1 == size || line[i + 1] != '[') {
            text[n++] = line[i];
            continue;
        }
        for (i += 2; i < size && !isalpha((unsigned char)line[i]);)
            i++;
    }
    text[n] = '\0';
}

void series_line(struct series *s, size_t rank, const char *line, size_t size, double t)
{
    char text[LINE_SIZE];
    copy_plain(line, size, text);
    if (s->pattern ? regexec(s->pattern, text, 0, NULL, 0) == 0
                   : rank == 0 && strcasestr(text, "loss"))
        read_pairs(s, rank, text, t);
}
