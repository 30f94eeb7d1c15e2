/* launcher/plugins/spawn/spawn_place.c - see spawn_place.h */
#include "launcher/plugins/spawn/spawn_place.h"

#include "common/err.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "launcher/job/plugin.h"

#include <stdlib.h>
#include <string.h>

/* "n1:2", with a number of slots as for mpirun, or "localhost". */
static bool is_named(const struct alloc_node *h, const struct strv *names)
{
    bool found = names->n == 0;
    for (size_t i = 0; i < names->n; i++) {
        size_t len = strcspn(names->v[i], ":");
        found |= strncmp(names->v[i], h->name, len) == 0 && !h->name[len];
        found |= h->local && len == 9 && strncmp(names->v[i], "localhost", len) == 0;
    }
    return found || strv_has(names, h->name, strlen(h->name));
}

/* Also one without ranks, unless that is a spare. Instances that were started on each
 * host reach no other host than their own. */
static bool may_use(const struct job *j, const struct job_node *n,
                    const struct strv *only)
{
    bool fine = !n->lost && !n->trouble && !n->leaving && !n->host->gone;
    return fine && (n->place >= 0 || j->opts->spares == 0) &&
           (!j->peers || n->host->local) && is_named(n->host, only);
}

static int free_slots(const struct job *j, unsigned node, const int *busy)
{
    const struct job_node *n = &j->nodes[node];
    int left = (n->host->slots ? n->host->slots : n->host->slots_else) - busy[node];
    for (int i = 0; n->place >= 0 && i < j->plan->nodes[n->place].nlocal; i++)
        left -= !j->ranks[j->plan->nodes[n->place].ranks[i]].exited;
    return left > 0 ? left : 0;
}

static char *text_of(const struct job *j, const int *on)
{
    char *text = xstrdup("");
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        const char *name = j->alloc->nodes[i].name;
        if (on[i] > 0)
            xappendf(&text, strchr(name, ':') ? "%s[%s]:%d" : "%s%s:%d", *text ? "," : "",
                     name, on[i]);
    }
    return text;
}

char *spawn_place(const struct job *j, unsigned n, const char *only, const int *busy,
                  int *on, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv names = {0};
    unsigned usable = 0, nnodes = (unsigned)j->alloc->nnodes;
    if (only && hostlist_expand(only, &names, err) < 0)
        return NULL;
    for (unsigned i = 0; i < nnodes; i++) {
        if (!may_use(j, &j->nodes[i], &names))
            continue;
        int take = free_slots(j, i, busy);
        on[i] = (unsigned)take < n ? take : (int)n;
        n -= (unsigned)on[i];
        usable++;
    }
    if (usable == 0) {
        err_set(err, "none of the job's hosts is '%.200s'", only ? only : "usable");
        return NULL;
    }
    for (unsigned i = 0; n > 0; i = (i + 1) % nnodes) {
        if (may_use(j, &j->nodes[i], &names)) {
            on[i]++;
            n--;
        }
    }
    bool here = nnodes == 1 && j->alloc->nodes[0].local;
    return here || j->peers ? xstrdup("") : text_of(j, on);
}
