/* launcher/agent/programs.c - see programs.h */
#include "launcher/agent/programs.h"

#include "common/apps.h"
#include "common/mem.h"
#include "launcher/agent/hooks.h"

#include <stdlib.h>

void programs_init(struct programs *all, const struct msg_job *job,
                   const struct msg_share *share)
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
        all->p[i].local = UINT32_MAX;
        for (size_t w = 0; w < app.nwords; w++)
            strv_push(&all->p[i].argv, job->argv.v[app.word + w]);
    }
    for (uint32_t i = share->nlocal; i-- > 0;)
        programs_of(all, share->ranks[i].rank)->local = i;
}

void programs_finish(struct programs *all)
{
    for (size_t i = 0; i < all->n; i++) {
        strv_finish(&all->p[i].argv);
        free(all->p[i].path);
        agent_plugins_forget(all->p[i].seen);
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
