/* launcher/agent/programs.c - see programs.h */
#include "launcher/agent/programs.h"

#include "common/apps.h"
#include "common/mem.h"

#include <stdlib.h>

void programs_init(struct programs *all, const struct msg_job *job)
{
    all->n = job->apps.n + 1;
    all->p = xcalloc(all->n, sizeof *all->p);
    for (size_t i = 0; i < all->n; i++) {
        struct app app;
        if (!apps_get(&job->apps, i, job->argv.n, &app)) {
            programs_finish(all);
            return;
        }
        all->p[i].first = app.first;
        for (size_t w = 0; w < app.nwords; w++)
            strv_push(&all->p[i].argv, job->argv.v[app.word + w]);
    }
}

void programs_finish(struct programs *all)
{
    for (size_t i = 0; i < all->n; i++) {
        strv_finish(&all->p[i].argv);
        free(all->p[i].path);
    }
    free(all->p);
    *all = (struct programs){0};
}

struct program *programs_of(const struct programs *all, uint32_t rank)
{
    size_t i = all->n - 1;
    while (i > 0 && all->p[i].first > rank)
        i--;
    return &all->p[i];
}
