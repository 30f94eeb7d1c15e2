/* launcher/plugins/horovod/slots.c - see slots.h */
#include "launcher/plugins/horovod/slots.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

void slots_add(struct horovod *h, enum slot_state state)
{
    const struct plan *p = h->j->plan;
    h->slots = xgrow(h->slots, (size_t)h->nslots, (size_t)p->nranks, sizeof *h->slots);
    for (int r = h->nslots; r < p->nranks; r++)
        h->slots[r] = (struct slot){
            state, {.rank = r, .size = p->nranks, .local_rank = p->ranks[r].local_rank}};
    h->counts[state] += p->nranks - h->nslots;
    h->nslots = p->nranks;
}

void slot_move(struct horovod *h, struct slot *s, enum slot_state to)
{
    h->counts[s->state]--;
    h->counts[to]++;
    s->state = to;
}

int slots_keepers(const struct horovod *h)
{
    return h->counts[SLOT_JOINS] + h->counts[SLOT_RUNS] + h->counts[SLOT_ASKS];
}

const char *slot_host(const struct horovod *h, int rank)
{
    return plan_host(h->j->plan, rank)->name;
}

struct slot *slots_find(struct horovod *h, const char *id)
{
    const struct plan *p = h->j->plan;
    const char *colon = strrchr(id, ':');
    size_t n = colon ? (size_t)(colon - id) : 0;
    for (int k = 0; colon && k < p->nnodes; k++) {
        const char *host = p->nodes[k].host->name;
        bool here = strlen(host) == n && strncmp(id, host, n) == 0;
        for (int i = 0; here && i < p->nodes[k].nlocal; i++) {
            struct slot *s = &h->slots[p->nodes[k].ranks[i]];
            if (s->state < SLOT_MISSING && s->place.local_rank == atoi(colon + 1))
                return s;
        }
    }
    return NULL;
}

void slots_set_gone(struct horovod *h, int place)
{
    const struct plan_node *pn = &h->j->plan->nodes[place];
    for (int i = 0; i < pn->nlocal; i++)
        slot_move(h, &h->slots[pn->ranks[i]], SLOT_GONE);
}

bool slots_are_gone(const struct horovod *h, int place)
{
    return h->slots[h->j->plan->nodes[place].ranks[0]].state == SLOT_GONE;
}
