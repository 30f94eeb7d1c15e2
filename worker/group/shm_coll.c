/* worker/group/shm_coll.c - collectives through shared memory (hier.h)
 *
 * The first barrier of a collective is the announcement: it carries the arguments, so
 * that mismatches are found, and the data themselves when they are short.
 *
 * short data: announced with the arguments; then each rank reduces all of them, in rank
 * order: one barrier.
 *
 * all_reduce with buffers in the arena: in step 0 each rank reduces its slice of all
 * buffers into all buffers; nothing is copied.
 */
#include "worker/group/hier.h"

#include "common/err.h"
#include "worker/group/reduce.h"

#include <string.h>

/* Bytes per rank and step: those of all ranks together fit the caches. */
enum { LOCAL_CHUNK = 262144 };

int shm_coll_check(const struct shm *s, const struct coll *c, struct ddp_err *err)
{
    for (int i = 0; i < s->n; i++) {
        const struct shm_post *p = &s->rank[i].post[s->seq & 1];
        if (i == s->me || (p->what == s->what && p->bytes == s->agreed))
            continue;
        struct call here = {c->number, s->agreed, s->what};
        struct call there = {c->number, p->bytes, p->what};
        return coll_disagree(s->ranks[s->me], &here, s->ranks[i], &there, err);
    }
    return 0;
}

/* ---- few bytes ---- */

/* The bytes that a local rank contributes. */
static size_t gives(const struct shm *s, const struct coll *c, int local)
{
    return coll_sends(c, s->ranks[local], s->layout->size) * type_size(c->type);
}

/* Do the contributions fit beside the announcements? */
static bool is_eager(const struct coll *c, int n)
{
    return c->kind != COLL_BARRIER && coll_most(c, n) > 0 &&
           coll_most(c, n) * type_size(c->type) <=
               SHM_EAGER / (c->kind == COLL_REDUCE_SCATTER ? (size_t)n : 1);
}

/* This rank's own buffer: the line it was announced in is on its way to the others. */
static const char *eager_data(const struct shm *s, const struct coll *c, int local)
{
    const struct shm_rank *r = &s->rank[local];
    if (local == s->me)
        return c->send;
    return gives(s, c, local) > SHM_INLINE ? r->eager[s->seq & 1]
                                           : r->post[s->seq & 1].data;
}

static void eager_reduce(struct shm *s, struct coll *c)
{
    struct range of = {0, c->count};
    if (c->kind == COLL_REDUCE_SCATTER)
        of = coll_block(c, s->me);
    for (int i = 0; i < s->n; i++)
        s->in[i] = coll_at(c, eager_data(s, c, i), of.at);
    reduce_many(&c->recv, 1, s->in, s->n, of.n, c->type, c->op, s->n);
}

static void eager_finish(struct shm *s, struct coll *c)
{
    int root = s->layout->members[c->root].local;
    if (c->kind == COLL_BROADCAST && s->me != root)
        coll_copy(c, c->recv, eager_data(s, c, root), c->count);
    else if (c->kind == COLL_ALL_REDUCE || c->kind == COLL_REDUCE_SCATTER ||
             (c->kind == COLL_REDUCE && s->me == root))
        eager_reduce(s, c);
    for (int i = 0; i < s->n && c->kind == COLL_ALL_GATHER; i++) {
        struct range b = coll_block(c, i);
        memmove(coll_at(c, c->recv, b.at), eager_data(s, c, i), b.n * type_size(c->type));
    }
}

bool shm_coll_finish_short(struct shm *s, struct coll *c)
{
    bool eager = is_eager(c, s->n);
    if (eager)
        eager_finish(s, c);
    return eager || c->kind == COLL_BARRIER || coll_most(c, s->n) == 0;
}

/* ---- parts of the data ---- */

struct range coll_chunk(const struct coll *c, size_t chunk)
{
    size_t at = chunk * c->chunk;
    if (at >= c->count)
        return (struct range){c->count, 0};
    return (struct range){at, c->count - at < c->chunk ? c->count - at : c->chunk};
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

char *shm_coll_direct(const struct shm *s, int local)
{
    int64_t where = s->rank[local].post[s->seq & 1].where;
    return where >= 0 ? s->base + where : NULL;
}

char *shm_coll_staged(const struct shm *s, const struct coll *c, int local, unsigned k,
                      size_t at)
{
    return coll_at(c, shm_stage(s, local, k), at - coll_chunk(c, k).at);
}

char *shm_coll_given(const struct shm *s, const struct coll *c, int local, unsigned k,
                     size_t at)
{
    char *there = shm_coll_direct(s, local);
    return there ? coll_at(c, there, at) : shm_coll_staged(s, c, local, k, at);
}

/* ---- work of one host ---- */

/* Reduce this rank's slice of all buffers: in one pass, or into its own buffer first
 * and then copied; see shm_coll_reduce_slice(). */
static void all_reduce_in_arena(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    if (t > 0)
        return;
    size_t size = type_size(c->type);
    struct range mine = range_slice((struct range){0, c->count}, c->type, s->me, s->n);
    bool apart = autotune_begin(&s->giving, mine.n * size) == 1;
    size_t most = apart ? LOCAL_CHUNK / size : mine.n;
    for (size_t done = 0, n; done < mine.n; done += n) {
        n = mine.n - done < most ? mine.n - done : most;
        for (int i = 0; i < s->n; i++) {
            s->out[i] = coll_at(c, shm_coll_direct(s, i), mine.at + done);
            s->in[i] = s->out[i];
        }
        void *const *out = apart ? &s->out[s->me] : s->out;
        reduce_many(out, apart ? 1 : s->n, s->in, s->n, n, c->type, c->op, s->n);
        for (int i = 0; apart && i < s->n; i++)
            if (i != s->me)
                coll_copy(c, s->out[i], s->out[s->me], n);
    }
    autotune_end(&s->giving, mine.n * size);
}

/* Reduce this rank's slice of a chunk, in the user's buffer and in the staging buffer.
 * One pass is best where the ranks share a cache. Elsewhere each line of the staging
 * buffer must first be fetched from its last reader, which a copy of whole lines
 * avoids. */
void shm_coll_reduce_slice(struct shm *s, struct coll *c, unsigned k)
{
    struct range of = range_slice(coll_chunk(c, k), c->type, s->me, s->n);
    size_t bytes = of.n * type_size(c->type);
    void *out[2] = {coll_at(c, c->recv, of.at), shm_coll_staged(s, c, s->me, k, of.at)};
    for (int i = 0; i < s->n; i++)
        s->in[i] = shm_coll_given(s, c, i, k, of.at);
    s->in[s->me] = out[0];
    bool apart = autotune_begin(&s->showing, bytes) == 1;
    reduce_many(out, apart ? 1 : 2, s->in, s->n, of.n, c->type, c->op, s->n);
    if (apart)
        memcpy(out[1], out[0], bytes);
    autotune_end(&s->showing, bytes);
}

const struct coll_step shm_coll_arena = {NULL, all_reduce_in_arena, NULL};

/* Elements per chunk: the chunks of all ranks fit the caches, and there are enough of
 * them for the steps to overlap. */
size_t shm_coll_chunk(const struct shm *s, const struct coll *c)
{
    size_t room = LOCAL_CHUNK, size = type_size(c->type), line = SHM_LINE / size;
    if (c->kind == COLL_REDUCE_SCATTER)
        room = LOCAL_CHUNK / (size_t)s->n;
    size_t bytes = coll_most(c, s->n) * size / 4;
    size_t chunk = bytes < room ? bytes : room;
    chunk = chunk / size / line * line;
    return chunk ? chunk : line;
}

void shm_coll_announce(struct shm *s, struct coll *c, bool with_data)
{
    bool eager = with_data && is_eager(c, s->n);
    bool speaks = c->kind != COLL_BROADCAST || s->ranks[s->me] == c->root;
    size_t bytes = gives(s, c, s->me);
    shm_post(s, coll_what(c), coll_agreed(c, s->layout->size),
             eager ? -1 : shm_where(s, c->send, bytes), c->send,
             eager && speaks ? bytes : 0);
}

bool shm_coll_reached(const struct shm *s, const struct coll *c, int local)
{
    const struct shm_rank *r = &s->rank[local];
    if (c->state == COLL_ANNOUNCED)
        return atomic_load(&r->post[s->seq & 1].seq) == s->seq;
    return (int32_t)(atomic_load(&r->step) - s->steps) >= 0;
}
