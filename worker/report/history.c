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
        const struct step_point *two = &h->steps[2 * i];
        h->steps[i] = (struct step_point){(two[0].at + two[1].at) / 2,
                                          (two[0].loss + two[1].loss) / 2};
    }
}

void history_step(struct history *h, struct step_point p)
{
    h->each = h->each ? h->each : 1;
    h->open.at += p.at;
    h->open.loss += p.loss;
    if (++h->nopen < h->each)
        return;
    h->steps[h->nsteps++] = (struct step_point){h->open.at / (double)h->nopen,
                                                h->open.loss / (double)h->nopen};
    h->open = (struct step_point){0, 0};
    h->nopen = 0;
    if (h->nsteps == HISTORY_STEPS)
        halve(h);
}

void history_epoch(struct history *h, struct epoch_point p)
{
    if (h->nepochs == h->epochs_room) {
        h->epochs_room = h->epochs_room ? 2 * h->epochs_room : 32;
        h->epochs = xrealloc(h->epochs, h->epochs_room, sizeof *h->epochs);
    }
    h->epochs[h->nepochs++] = p;
}

void history_finish(struct history *h)
{
    free(h->epochs);
    *h = (struct history){0};
}
