/* launcher/tools/scaling/work.c - see work.h */
#include "launcher/tools/scaling/work.h"

#include "common/err.h"
#include "common/mem.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

const char *const series_names[SERIES_COUNT] = {"strong", "weak"};

static const char per_rank[] = "{per-rank:", total[] = "{total:";

static bool has_mark(char *const *argv)
{
    for (; argv && *argv; argv++) {
        if (strstr(*argv, per_rank) || strstr(*argv, total))
            return true;
    }
    return false;
}

static int read_sizes(const char *text, struct work *w, struct ddp_err *err)
{
    for (const char *p = text;;) {
        char *end;
        errno = 0;
        long n = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : 0;
        if (n < 1 || n > 10000000 || errno || (*end && *end != ','))
            return err_set(err, "expected numbers of ranks such as 1,2,4,8, not '%.60s'",
                           p);
        if (w->nsizes > 0 && n <= w->sizes[w->nsizes - 1])
            return err_set(err, "%ld follows %d; write the sizes from small to large", n,
                           w->sizes[w->nsizes - 1]);
        if (w->nsizes == SIZES_MAX)
            return err_set(err, "more than %d sizes", SIZES_MAX);
        w->sizes[w->nsizes++] = (int)n;
        if (!*end)
            return 0;
        p = end + 1;
    }
}

int work_read(const char *text, char *const *argv, struct work *w, struct ddp_err *err)
{
    *w = (struct work){0};
    for (int s = 0; s < SERIES_COUNT; s++) {
        size_t len = strlen(series_names[s]);
        if (strncmp(text, series_names[s], len) == 0 && text[len] == ':') {
            w->series[s] = true;
            return read_sizes(text + len + 1, w, err);
        }
    }
    w->series[SERIES_STRONG] = true;
    w->series[SERIES_WEAK] = has_mark(argv);
    return read_sizes(text, w, err);
}

/* The value of a mark for this number of ranks: >= 0, -1 on error. */
static long amount(long one, bool of_each, enum series series, int ranks,
                   struct ddp_err *err)
{
    if (of_each == (series == SERIES_WEAK))
        return one;
    if (!of_each)
        return one <= LONG_MAX / ranks ? one * ranks
                                       : err_set(err, "%ld x %d is too much", one, ranks);
    if (one % ranks != 0)
        return err_set(err,
                       "{per-rank:%ld} is no whole number for each of %d ranks; write a "
                       "multiple of %d",
                       one, ranks, ranks);
    return one / ranks;
}

/* `word` with its marks replaced; the caller frees. NULL with `err`. */
static char *replace(const char *word, enum series series, int ranks, struct ddp_err *err)
{
    const char *each = strstr(word, per_rank), *all = strstr(word, total);
    const char *mark = !each || (all && all < each) ? all : each;
    if (!mark)
        return xstrdup(word);
    bool of_each = mark == each;
    const char *digits = mark + (of_each ? sizeof per_rank : sizeof total) - 1;
    char *end;
    errno = 0;
    long one = isdigit((unsigned char)*digits) ? strtol(digits, &end, 10) : -1;
    if (one < 0 || errno || *end != '}') {
        err_set(err, "'%.60s': expected {per-rank:64} or {total:1000}", mark);
        return NULL;
    }
    long n = amount(one, of_each, series, ranks, err);
    OWNED char *rest = n < 0 ? NULL : replace(end + 1, series, ranks, err);
    return rest ? xasprintf("%.*s%ld%s", (int)(mark - word), word, n, rest) : NULL;
}

int work_command(char *const *argv, enum series series, int ranks, struct strv *out,
                 struct ddp_err *err)
{
    for (; *argv; argv++) {
        char *word = replace(*argv, series, ranks, err);
        if (!word)
            return -1;
        strv_push_nodup(out, word);
    }
    return 0;
}
