/* launcher/job/peers.c - see peers.h */
#include "launcher/job/peers.h"

#include "common/scoped.h"

#include <stdlib.h>

void peers_finish(struct peers *p)
{
    for (size_t i = 0; i < p->n; i++) {
        close_fd(&p->list[i].fd);
        free(p->list[i].here);
        secret_wipe(&p->list[i].keys, sizeof p->list[i].keys);
    }
    free(p->list);
    if (p->late)
        p->late->close(p->late);
    alloc_destroy(p->alloc);
    *p = (struct peers){0};
}
