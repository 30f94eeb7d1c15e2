/* launcher/transport/tree.c - see tree.h */
#include "launcher/transport/tree.h"

#include "common/mem.h"

#include <stdlib.h>

unsigned tree_below(const struct msg_hosts *hosts, unsigned node,
                    void (*each)(unsigned node, void *arg), void *arg)
{
    if (node != TREE_ROOT && hosts->width >= hosts->nhosts)
        return 0; /* flat */
    /* the index of `node` in the row; the launcher is -1 */
    int64_t place = -1;
    for (unsigned i = 0; node != TREE_ROOT && i < node && i < hosts->nhosts; i++)
        place += !hosts->hosts[i].started;
    if (node != TREE_ROOT)
        place += 1;
    int64_t first = (int64_t)hosts->width * (place + 1), row = 0;
    unsigned n = 0;
    for (unsigned i = 0; i < hosts->nhosts; i++) {
        if (hosts->hosts[i].started)
            continue;
        if (row >= first + hosts->width)
            break;
        if (row >= first) {
            n++;
            if (each)
                each(i, arg);
        }
        row++;
    }
    return n;
}

void tree_row_init(struct tree_row *t, const struct msg_hosts *hosts, unsigned width)
{
    *t = (struct tree_row){.width = width,
                           .nodes = xcalloc(hosts->nhosts, sizeof *t->nodes),
                           .place = xcalloc(hosts->nhosts, sizeof *t->place)};
    for (unsigned i = 0; i < hosts->nhosts; i++) {
        t->place[i] = (unsigned)t->n;
        if (!hosts->hosts[i].started)
            t->nodes[t->n++] = i;
    }
}

void tree_row_finish(struct tree_row *t)
{
    free(t->nodes);
    free(t->place);
}

void tree_row_set(const struct tree_row *t, const struct msg_hosts *hosts,
                  const struct secret *job, struct bootstrap *s)
{
    size_t place = t->place[s->node];
    long parent = bootstrap_parent_place(t->width, place);
    bootstrap_set_tree(s, job, t->width, t->nodes, t->n, place,
                       parent < 0 ? NULL : hosts->hosts[t->nodes[parent]].name);
}
