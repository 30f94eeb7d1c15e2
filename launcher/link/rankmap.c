/* launcher/link/rankmap.c - see rankmap.h */
#include "launcher/link/rankmap.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

void rankmap_push(struct strv *map, const char *host, const int *ranks, int n)
{
    struct idset set = {0};
    for (int i = 0; i < n; i++)
        idset_add(&set, ranks[i], ranks[i]);
    char *text = idset_text(&set);
    strv_pushf(map, "%s %s", text, host);
    free(text);
    idset_finish(&set);
}

static int read_node(struct rankmap *m, uint32_t node, const char *text,
                     struct ddp_err *err)
{
    struct rankmap_node *n = &m->nodes[node];
    size_t len = strcspn(text, " ");
    if (text[len] != ' ' || text[len + 1] == '\0')
        return err_set(err, "no host name in the rank map: '%s'", text);
    n->host = text + len + 1;
    char *ranks = xstrndup(text, len);
    int rc = idset_parse(ranks, &n->ranks, err);
    free(ranks);
    for (size_t i = 0; rc == 0 && i < n->ranks.n; i++) {
        const struct idspan *s = &n->ranks.spans[i];
        for (int r = s->lo; rc == 0 && r <= s->hi; r++, n->nranks++) {
            if ((uint32_t)r >= m->nranks || m->node_of[r] != UINT32_MAX)
                rc = err_set(err, "rank %d is twice in the map, or not of the job", r);
            else
                m->node_of[r] = node;
        }
    }
    return rc;
}

int rankmap_read(struct rankmap *m, const struct strv *map, uint32_t nranks,
                 struct ddp_err *err)
{
    *m = (struct rankmap){.nnodes = (uint32_t)map->n, .nranks = nranks};
    m->nodes = xcalloc(map->n + 1, sizeof *m->nodes);
    m->node_of = xcalloc(nranks + 1, sizeof *m->node_of);
    memset(m->node_of, 0xff, nranks * sizeof *m->node_of);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < map->n; i++) {
        if (read_node(m, i, map->v[i], err) < 0) {
            rankmap_finish(m);
            return -1;
        }
        seen += m->nodes[i].nranks;
    }
    if (seen == nranks)
        return 0;
    rankmap_finish(m);
    return err_set(err, "a map of %u ranks for a job of %u", seen, nranks);
}

void rankmap_finish(struct rankmap *m)
{
    for (uint32_t i = 0; m->nodes && i < m->nnodes; i++)
        idset_finish(&m->nodes[i].ranks);
    free(m->nodes);
    free(m->node_of);
    *m = (struct rankmap){0};
}
