/* launcher/plugins/horovod/world.c - see world.h */
#include "launcher/plugins/horovod/world.h"

#include "common/mem.h"

#include <stdlib.h>

static int compare(int a, int b)
{
    return (a > b) - (a < b);
}

/* Nodes in the order of their numbers, but that of `root` first. */
static int by_node(const void *x, const void *y, void *root)
{
    const struct member *a = x, *b = y, *first = root;
    int other = compare(a->node != first->node, b->node != first->node);
    int node = other ? other : compare(a->node, b->node);
    return node ? node : compare(a->local_rank, b->local_rank);
}

/* The same, but `root` before the others of its node. */
static int by_rank(const void *x, const void *y, void *root)
{
    const struct member *a = x, *b = y, *first = root;
    int other = compare(a->id != first->id, b->id != first->id);
    return other ? other : by_node(x, y, root);
}

/* The lowest rank of the last world that is left. */
static struct member find_root(const struct member *m, int n)
{
    const struct member *root = m;
    for (int i = 1; i < n; i++) {
        if (m[i].keeps && (!root->keeps || m[i].place.rank < root->place.rank))
            root = &m[i];
    }
    return *root;
}

/* The ranks of one node stand together, by local rank. */
static void place_locally(struct member *m, int n)
{
    for (int i = 0; i < n; i++) {
        bool next = i > 0 && m[i - 1].node == m[i].node;
        m[i].place = (struct place){
            .size = n, .local_rank = next ? m[i - 1].place.local_rank + 1 : 0};
    }
    for (int i = n - 1; i >= 0; i--) {
        bool last = i + 1 == n || m[i + 1].node != m[i].node;
        m[i].place.local_size =
            last ? m[i].place.local_rank + 1 : m[i + 1].place.local_size;
    }
}

void world_form(struct member *m, int n)
{
    struct member root = find_root(m, n);
    OWNED int *across = xcalloc((size_t)n, sizeof *across); /* by local rank */
    qsort_r(m, (size_t)n, sizeof *m, by_node, &root);
    place_locally(m, n);
    qsort_r(m, (size_t)n, sizeof *m, by_rank, &root);
    for (int i = 0; i < n; i++) {
        m[i].place.rank = i;
        m[i].place.cross_rank = across[m[i].place.local_rank]++;
    }
    for (int i = 0; i < n; i++)
        m[i].place.cross_size = across[m[i].place.local_rank];
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
