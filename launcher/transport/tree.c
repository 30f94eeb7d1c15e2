/* launcher/transport/tree.c - see tree.h */
#include "launcher/transport/tree.h"

#include "common/mem.h"

#include <stdlib.h>

void tree_row_init(struct tree_row *t, const struct msg_hosts *hosts)
{
    *t = (struct tree_row){.nodes = xcalloc(hosts->nhosts, sizeof *t->nodes),
                           .place = xcalloc(hosts->nhosts, sizeof *t->place)};
    for (unsigned i = 0; i < hosts->nhosts; i++) {
        const struct host *h = &hosts->hosts[i];
        t->place[i] = t->n;
        if (!h->started)
            t->nodes[t->n++] = (struct bootstrap_node){i, xstrdup(h->name)};
    }
}

void tree_row_finish(struct tree_row *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->nodes[i].name);
    free(t->nodes);
    free(t->place);
}

size_t tree_row_below(const struct tree_row *t, unsigned width, unsigned node,
                      size_t *first)
{
    *first = width * (node == TREE_ROOT ? 0 : t->place[node] + 1);
    size_t left = *first < t->n ? t->n - *first : 0;
    return left < width ? left : width;
}
