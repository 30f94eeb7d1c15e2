/* worker/group/coll.c - see coll.h */
#include "worker/group/coll.h"

#include "worker/group/reduce.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const kind_names[] = {"barrier", "broadcast", "all_reduce",
                                         "all_gather", "reduce_scatter"};

const char *coll_name(const struct coll *c, char *text, size_t size)
{
    snprintf(text, size, "%s #%llu", kind_names[c->kind], (unsigned long long)c->number);
    return text;
}

size_t coll_bytes(const struct coll *c)
{
    return c->count * type_size(c->type);
}

/* Operation and root count only where they mean something. */
uint32_t coll_what(const struct coll *c)
{
    bool reduces = c->kind == COLL_ALL_REDUCE || c->kind == COLL_REDUCE_SCATTER;
    return (uint32_t)c->kind | (uint32_t)c->type << 4 |
           (reduces ? (uint32_t)c->op << 8 : 0) |
           (c->kind == COLL_BROADCAST ? (uint32_t)c->root << 12 : 0);
}

void coll_describe(uint32_t what, uint64_t bytes, char *text, size_t size)
{
    enum coll_kind kind = what & 15;
    int n = snprintf(text, size, "%s", kind_names[kind % 5]);
    if (kind == COLL_ALL_REDUCE || kind == COLL_REDUCE_SCATTER)
        n += snprintf(text + n, size - (size_t)n, "(%s)", op_name((what >> 8 & 15) % 5));
    if (kind != COLL_BARRIER)
        n += snprintf(text + n, size - (size_t)n, " of %llu bytes of %s",
                      (unsigned long long)bytes, type_name((what >> 4 & 15) % 5));
    if (kind == COLL_BROADCAST)
        snprintf(text + n, size - (size_t)n, " from rank %u", what >> 12);
}

void coll_finish(struct coll *c)
{
    net_op_finish(&c->net);
    if (c->part)
        coll_finish(c->part);
    free(c->part);
    free(c->scratch);
    c->part = NULL;
    c->scratch = NULL;
}
