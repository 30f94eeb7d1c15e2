/* common/apps.h - the programs of a job: prog1 : -np 2 prog2
 *
 * The words of all programs are in one argv. A list has an entry for each program but the
 * first: its first rank, and the index of its first word.
 */
#ifndef COMMON_APPS_H
#define COMMON_APPS_H

#include "common/strv.h"

#include <stdbool.h>
#include <stdio.h>

struct app {
    unsigned first;      /* rank */
    size_t word, nwords; /* in argv */
};

static inline void apps_add(struct strv *apps, unsigned first, size_t word)
{
    strv_pushf(apps, "%u %zu", first, word);
}

/* Program `i`, from 0 to apps->n, of an argv with `nargv` words; false: a malformed list.
 */
static inline bool apps_get(const struct strv *apps, size_t i, size_t nargv,
                            struct app *app)
{
    unsigned next;
    size_t end = nargv;
    *app = (struct app){0};
    if ((i > 0 && sscanf(apps->v[i - 1], "%u %zu", &app->first, &app->word) != 2) ||
        (i < apps->n && sscanf(apps->v[i], "%u %zu", &next, &end) != 2) ||
        app->word >= end || end > nargv)
        return false;
    app->nwords = end - app->word;
    return true;
}

/* The program that `rank` runs, and the first rank of that program. */
static inline unsigned apps_of(const struct strv *apps, unsigned rank, unsigned *first)
{
    size_t low = 0, high = apps->n;
    *first = 0;
    while (low < high) {
        unsigned begins = 0;
        size_t i = (low + high + 1) / 2;
        sscanf(apps->v[i - 1], "%u", &begins);
        if (begins <= rank) {
            low = i;
            *first = begins;
        } else {
            high = i - 1;
        }
    }
    return (unsigned)low;
}

static inline bool apps_valid(const struct strv *apps, size_t nargv)
{
    struct app app;
    bool valid = true;
    for (size_t i = 0; i <= apps->n; i++)
        valid &= apps_get(apps, i, nargv, &app);
    return valid;
}

#endif
