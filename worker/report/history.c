/* worker/report/history.c - see history.h */
#include "worker/report/history.h"

#include "common/mem.h"

#include <stdlib.h>

void history_step(struct history *h, struct step_point p)
{
    if (h->nsteps == h->steps_room) {
        h->steps_room = h->steps_room ? 2 * h->steps_room : 256;
        h->steps = xrealloc(h->steps, h->steps_room, sizeof *h->steps);
    }
    h->steps[h->nsteps++] = p;
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
    free(h->steps);
    free(h->epochs);
    *h = (struct history){0};
}
