/* launcher/plugins/horovod/world.c - see world.h */
#include "launcher/plugins/horovod/world.h"

#include "common/mem.h"

#include <stdlib.h>

static int compare(int a, int b)
{
    return (a > b) - (a < b);
}

/* Does `a` precede `b`? `root` comes first, then the others of its node. */
static int precedes(const struct member *a, const struct member *b,
                    const struct member *root)
{
    if (a == root || b == root)
        return compare(b == root, a == root);
    if (a->node != b->node) {
        int by_first = compare(b->node == root->node, a->node == root->node);
        return by_first ? by_first : compare(a->node, b->node);
    }
    return compare(a->seat, b->seat);
}

/* The lowest rank of the last world that is left. */
static const struct member *find_root(const struct member *m, int n)
{
    const struct member *root = NULL;
    for (int i = 0; i < n; i++) {
        if (m[i].keeps && (!root || m[i].place.rank < root->place.rank))
            root = &m[i];
    }
    return root;
}

void world_form(struct member *m, int n)
{
    const struct member *root = find_root(m, n);
    for (int i = 0; i < n; i++) {
        struct place p = {.size = n};
        for (int k = 0; k < n; k++) {
            p.rank += precedes(&m[k], &m[i], root) < 0;
            p.local_rank += m[k].node == m[i].node && m[k].seat < m[i].seat;
            p.local_size += m[k].node == m[i].node;
        }
        m[i].place = p;
    }
    for (int i = 0; i < n; i++) {
        struct place *p = &m[i].place;
        for (int k = 0; k < n; k++) {
            bool same = m[k].place.local_rank == p->local_rank;
            p->cross_rank += same && m[k].place.rank < p->rank;
            p->cross_size += same;
        }
    }
}

char *place_text(const struct place *p)
{
    return xasprintf("%d,%d,%d,%d,%d,%d", p->rank, p->size, p->local_rank, p->local_size,
                     p->cross_rank, p->cross_size);
}

void place_env(const struct place *p, struct strv *env)
{
    strv_pushf(env, "HOROVOD_RANK=%d", p->rank);
    strv_pushf(env, "HOROVOD_SIZE=%d", p->size);
    strv_pushf(env, "HOROVOD_LOCAL_RANK=%d", p->local_rank);
    strv_pushf(env, "HOROVOD_LOCAL_SIZE=%d", p->local_size);
    strv_pushf(env, "HOROVOD_CROSS_RANK=%d", p->cross_rank);
    strv_pushf(env, "HOROVOD_CROSS_SIZE=%d", p->cross_size);
}
