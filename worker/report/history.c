/* worker/report/history.c - see history.h */
#include "worker/report/history.h"

#include "common/mem.h"

#include <stdlib.h>

/* Replaces each two points by their mean; from now on a point has twice as many steps. */
static void halve(struct history *h)
{
    h->nsteps /= 2;
    h->each *= 2;
    for (size_t i = 0; i < h->nsteps; i++) {
        h->at[i] = (h->at[2 * i] + h->at[2 * i + 1]) / 2;
        h->loss[i] = (h->loss[2 * i] + h->loss[2 * i + 1]) / 2;
    }
}

void history_step(struct history *h, double at, double loss)
{
    h->each = h->each ? h->each : 1;
    h->open_at += at;
    h->open_loss += loss;
    if (++h->nopen < h->each)
        return;
    h->at[h->nsteps] = h->open_at / (double)h->nopen;
    h->loss[h->nsteps++] = h->open_loss / (double)h->nopen;
    h->open_at = h->open_loss = 0;
    h->nopen = 0;
    if (h->nsteps == HISTORY_STEPS)
        halve(h);
}

void history_epoch(struct history *h, const struct report *r)
{
    h->epochs = xrealloc(h->epochs, h->nepochs + 1, sizeof *h->epochs);
    h->epochs[h->nepochs++] = *r;
}

void history_finish(struct history *h)
{
    free(h->epochs);
    *h = (struct history){0};
}
