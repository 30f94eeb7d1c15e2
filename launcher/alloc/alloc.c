/* launcher/alloc/alloc.c - see alloc.h */
#include "launcher/alloc/alloc.h"

#include "common/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <strings.h>

struct alloc_node *alloc_add(struct alloc *a, const char *name)
{
    a->nodes = xroom(a->nodes, a->nnodes, &a->room, sizeof *a->nodes);
    struct alloc_node *node = &a->nodes[a->nnodes++];
    *node = (struct alloc_node){.name = xstrdup(name)};
    return node;
}

void alloc_node_copy(struct alloc_node *to, const struct alloc_node *from)
{
    *to = *from;
    to->name = xstrdup(from->name);
    to->user = xstrdup(from->user);
    to->slots_from = xstrdup(from->slots_from);
}

void alloc_node_finish(struct alloc_node *node)
{
    free(node->name);
    free(node->user);
    free(node->slots_from);
}

void alloc_keep(struct alloc *a, const bool *keep)
{
    size_t n = 0;
    for (size_t i = 0; i < a->nnodes; i++) {
        if (keep[i])
            a->nodes[n++] = a->nodes[i];
        else
            alloc_node_finish(&a->nodes[i]);
    }
    a->nnodes = n;
}

void alloc_clear(struct alloc *a)
{
    for (size_t i = 0; i < a->nnodes; i++)
        alloc_node_finish(&a->nodes[i]);
    free(a->nodes);
    *a = (struct alloc){0};
}

void alloc_destroy(struct alloc *a)
{
    if (!a)
        return;
    alloc_clear(a);
    free(a);
}

void alloc_set_slots(struct alloc_node *node, int slots, enum slots_by by,
                     const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *from = xvasprintf(fmt, args); /* an argument may be the old text */
    va_end(args);
    free(node->slots_from);
    node->slots_from = from;
    node->slots_by = by;
    node->slots = slots;
}

void alloc_resolve(struct alloc *a, size_t i, int ngpus)
{
    assert(i < a->nnodes);
    struct alloc_node *node = &a->nodes[i];
    if (node->slots_by == SLOTS_GIVEN) {
        if (node->slots_else > 0 && node->slots_else < ngpus)
            node->slots_else = ngpus;
        return;
    }
    if (ngpus == 0 && node->slots_else > 0) {
        node->slots = node->slots_else; /* slots_from names the source */
        node->slots_by = SLOTS_GIVEN;
        return;
    }
    if (ngpus > 0)
        alloc_set_slots(node, ngpus, SLOTS_GPUS, "%d GPU%s", ngpus, ngpus > 1 ? "s" : "");
    else if (a->nnodes == 1 && node->local)
        alloc_set_slots(node, 0, SLOTS_UNSET, "no GPU: -np decides");
    else
        alloc_set_slots(node, 1, SLOTS_DEFAULT, "no GPU: 1");
    if (node->max_slots && node->slots > node->max_slots)
        node->slots = node->max_slots;
}

bool alloc_is_localhost(const char *name)
{
    static const char *const names[] = {"localhost",     "localhost.localdomain",
                                        "ip6-localhost", "localhost6",
                                        "ip6-loopback",  "localhost6.localdomain6",
                                        "localhost4",    "localhost4.localdomain4"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcasecmp(name, names[i]) == 0)
            return true;
    }
    return false;
}
