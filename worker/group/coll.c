/* worker/group/coll.c - see coll.h */
#include "worker/group/coll.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/group.h"
#include "worker/group/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REDUCES = 1, HAS_ROOT = 2, BY_MESSAGES = 4, NO_SIZE = 8 };

/* What a buffer holds: all blocks, this rank's, or a vector of `count`; those of the root
 * are the root's only. */
enum extent { COUNT, BLOCK, BLOCKS, ROOT_COUNT, ROOT_BLOCKS };

static const struct {
    const char *name;
    unsigned is;
    enum extent send, recv;
} kinds[] = {
    [COLL_BARRIER] = {"barrier", NO_SIZE, COUNT, COUNT},
    [COLL_BROADCAST] = {"broadcast", HAS_ROOT, COUNT, COUNT},
    [COLL_ALL_REDUCE] = {"all_reduce", REDUCES, COUNT, COUNT},
    [COLL_ALL_GATHER] = {"all_gather", 0, BLOCK, BLOCKS},
    [COLL_REDUCE_SCATTER] = {"reduce_scatter", REDUCES, BLOCKS, BLOCK},
    [COLL_REDUCE] = {"reduce", REDUCES | HAS_ROOT, COUNT, ROOT_COUNT},
    [COLL_GATHER] = {"gather", HAS_ROOT | BY_MESSAGES | NO_SIZE, COUNT, ROOT_BLOCKS},
    [COLL_SCATTER] = {"scatter", HAS_ROOT | BY_MESSAGES | NO_SIZE, ROOT_BLOCKS, COUNT},
    [COLL_ALL_TO_ALL] = {"all_to_all", BY_MESSAGES | NO_SIZE, BLOCKS, BLOCKS},
    [COLL_SPLIT] = {"group_split", NO_SIZE, COUNT, COUNT},
    [COLL_SPLIT + 1 ... COLL_BOOTSTRAP] = {"making of a group", NO_SIZE, COUNT, COUNT},
};

/* What the user has called. */
static unsigned called(const struct coll *c)
{
    return c->internal && c->kind == COLL_ALL_GATHER ? COLL_SPLIT : (unsigned)c->kind;
}

bool coll_reduces(enum coll_kind kind)
{
    return kinds[kind].is & REDUCES;
}

bool coll_by_messages(enum coll_kind kind)
{
    return kinds[kind].is & BY_MESSAGES;
}

struct phrase coll_name(const struct coll *c)
{
    struct phrase name;
    snprintf(name.text, sizeof name.text, "%s #%llu", kinds[called(c)].name,
             (unsigned long long)c->number);
    return name;
}

char *coll_at(const struct coll *c, const void *base, size_t at)
{
    return (char *)(uintptr_t)base + at * type_size(c->type);
}

void coll_copy(const struct coll *c, void *to, const void *from, size_t n)
{
    if (n > 0) /* else they may be NULL */
        memcpy(to, from, n * type_size(c->type));
}

size_t *coll_starts(const size_t *counts, int n)
{
    size_t *starts = xcalloc((size_t)n + 1, sizeof *starts);
    for (int i = 0; i < n; i++)
        starts[i + 1] = starts[i] + counts[i];
    return starts;
}

size_t coll_most(const struct coll *c, int n)
{
    size_t most = c->count;
    for (int i = 0; c->starts && i < n; i++) {
        size_t out = coll_block(c, i).n;
        size_t in = c->starts_in ? coll_block_in(c, c->starts_in, i).n : out;
        most = out > most ? out : most;
        most = in > most ? in : most;
    }
    return most;
}

static size_t extent_of(const struct coll *c, enum extent extent, const size_t *starts,
                        int me, int size)
{
    bool of_root = extent == ROOT_COUNT || extent == ROOT_BLOCKS;
    if (of_root && me != c->root)
        return 0;
    if (extent == BLOCKS || extent == ROOT_BLOCKS)
        return starts ? starts[size] : c->count * (size_t)size;
    return extent == BLOCK ? coll_block(c, me).n : c->count;
}

size_t coll_sends(const struct coll *c, int me, int size)
{
    return extent_of(c, kinds[c->kind].send, c->starts, me, size);
}

size_t coll_receives(const struct coll *c, int me, int size)
{
    return extent_of(c, kinds[c->kind].recv, c->starts_in ? c->starts_in : c->starts, me,
                     size);
}

bool coll_gives(const struct coll *c, int me, int peer, struct range *r)
{
    bool all = c->kind == COLL_GATHER;
    *r = all ? (struct range){0, c->count} : coll_block(c, peer);
    return c->kind == COLL_ALL_TO_ALL || (all && peer == c->root) ||
           (c->kind == COLL_SCATTER && me == c->root);
}

bool coll_takes(const struct coll *c, int me, int peer, struct range *r)
{
    bool all = c->kind == COLL_SCATTER;
    *r = all ? (struct range){0, c->count}
             : coll_block_in(c, c->starts_in ? c->starts_in : c->starts, peer);
    return c->kind == COLL_ALL_TO_ALL || (all && peer == c->root) ||
           (c->kind == COLL_GATHER && me == c->root);
}

static struct range chunk_of(struct range r, size_t chunk, size_t k)
{
    size_t at = k * chunk < r.n ? k * chunk : r.n, left = r.n - at;
    return (struct range){r.at + at, left < chunk ? left : chunk};
}

struct range coll_part(const struct coll *c, int i, size_t k)
{
    return chunk_of(coll_block(c, i), c->chunk, k);
}

struct range coll_chunk(const struct coll *c, size_t k)
{
    return chunk_of((struct range){0, c->count}, c->chunk, k);
}

struct range range_slice(struct range r, enum ddp_type type, int i, int n)
{
    size_t line = SHM_LINE / type_size(type), lines = (r.n + line - 1) / line;
    size_t from = lines * (size_t)i / (size_t)n * line;
    size_t to = lines * ((size_t)i + 1) / (size_t)n * line;
    from = from < r.n ? from : r.n;
    to = to < r.n ? to : r.n;
    return (struct range){r.at + from, to - from};
}

uint64_t coll_agreed(const struct coll *c, int size)
{
    bool blocks = kinds[c->kind].send == BLOCKS || kinds[c->kind].recv == BLOCKS;
    if (kinds[c->kind].is & NO_SIZE)
        return 0;
    return extent_of(c, blocks ? BLOCKS : COUNT, c->starts, 0, size) * type_size(c->type);
}

/* Of the sizes of the blocks; 0 if they are the same, or may differ between ranks. */
static uint64_t hash_of_blocks(const struct coll *c, int size)
{
    uint64_t hash = 0;
    if (!c->starts || kinds[c->kind].is & NO_SIZE)
        return 0;
    for (int i = 1; i < size; i++)
        hash = (hash ^ (coll_block(c, i).n - coll_block(c, 0).n)) * 0x9e3779b97f4a7c15;
    return hash & ~COLL_BYTES;
}

/* Operation and root count only where they mean something. */
uint32_t coll_what(const struct coll *c)
{
    return called(c) | (uint32_t)c->type << 4 |
           (coll_reduces(c->kind) ? (uint32_t)c->op << 8 : 0) |
           (kinds[c->kind].is & HAS_ROOT ? (uint32_t)c->root << 12 : 0);
}

struct phrase coll_describe(uint32_t what, uint64_t bytes)
{
    struct phrase of;
    char *text = of.text;
    unsigned kind = what & 15, is = kinds[kind].is;
    size_t size = sizeof of.text,
           n = (size_t)snprintf(text, size, "%s", kinds[kind].name);
    if (is & REDUCES)
        n += (size_t)snprintf(text + n, size - n, "(%s)", op_name(what >> 8 & 15));
    if (!(is & NO_SIZE))
        n += (size_t)snprintf(text + n, size - n, " of %llu bytes of %s",
                              (unsigned long long)(bytes & COLL_BYTES),
                              type_name(what >> 4 & 15));
    else if (is & BY_MESSAGES)
        n += (size_t)snprintf(text + n, size - n, " of %s", type_name(what >> 4 & 15));
    if (is & HAS_ROOT)
        snprintf(text + n, size - n,
                 kind == COLL_BROADCAST || kind == COLL_SCATTER ? " from rank %u"
                                                                : " to rank %u",
                 what >> 12);
    return of;
}

struct call coll_call(const struct coll *c, int size)
{
    return (struct call){.number = c->number,
                         .bytes = coll_agreed(c, size) | hash_of_blocks(c, size),
                         .what = coll_what(c)};
}

bool coll_same(const struct call *a, const struct call *b)
{
    return a->number == b->number && a->what == b->what && a->bytes == b->bytes;
}

int coll_disagree(int rank, const struct call *mine, int other, const struct call *theirs,
                  struct ddp_err *err)
{
    if (rank > other)
        return coll_disagree(other, theirs, rank, mine, err);
    struct phrase first = coll_describe(mine->what, mine->bytes);
    struct phrase second = coll_describe(theirs->what, theirs->bytes);
    if (mine->number == theirs->number)
        return err_set(err,
                       "the ranks disagree on collective #%llu: rank %d calls %s, rank "
                       "%d calls %s%s",
                       (unsigned long long)mine->number, rank, first.text, other,
                       second.text,
                       strcmp(first.text, second.text) == 0 ? " with other counts" : "");
    return err_set(err,
                   "the ranks disagree on a collective: rank %d calls %s as its #%llu, "
                   "rank %d calls %s as its #%llu",
                   rank, first.text, (unsigned long long)mine->number, other, second.text,
                   (unsigned long long)theirs->number);
}

void coll_finish(struct coll *c)
{
    free(c->scratch);
    free(c->items);
    free(c->starts);
    free(c->starts_in);
    c->scratch = NULL;
    c->items = NULL;
    c->starts = c->starts_in = NULL;
}
