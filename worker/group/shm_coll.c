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

/* Have all announced the same call? */
static int check(const struct shm *s, const struct coll *c, struct ddp_err *err)
{
    const struct shm_post *mine = &s->rank[s->me].post[s->seq & 1];
    for (int i = 0; i < s->n; i++) {
        const struct shm_post *p = &s->rank[i].post[s->seq & 1];
        if (p->what == mine->what && p->bytes == mine->bytes)
            continue;
        struct call here = coll_call(c, s->layout->size);
        struct call there = {.number = c->number, .bytes = p->bytes, .what = p->what};
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
    return coll_most(c, n) > 0 &&
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
        if (b.n > 0) /* else recv may be NULL */
            memmove(coll_at(c, c->recv, b.at), eager_data(s, c, i),
                    b.n * type_size(c->type));
    }
}

bool shm_coll_finish_short(struct shm *s, struct coll *c)
{
    bool eager = is_eager(c, s->n);
    if (eager)
        eager_finish(s, c);
    return eager || coll_most(c, s->n) == 0;
}

/* ---- parts of the data ---- */

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

/* In one pass, or into the first and then copied. One pass is best where the ranks share
 * a cache. Elsewhere each line of the others must first be fetched from its last reader,
 * which a copy of whole lines avoids. */
void shm_coll_reduce(struct shm *s, struct autotune *which, const struct coll *c,
                     int nout, size_t n)
{
    size_t bytes = n * type_size(c->type);
    bool apart = autotune_begin(which, bytes) == 1;
    reduce_many(s->out, apart ? 1 : nout, s->in, s->n, n, c->type, c->op, s->n);
    for (int i = 1; apart && i < nout; i++)
        memcpy(s->out[i], s->out[0], bytes);
    autotune_end(which, bytes);
}

/* Reduce this rank's slice of all buffers into all of them, its own first. */
static void all_reduce_in_arena(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    struct range mine = range_slice((struct range){0, c->count}, c->type, s->me, s->n);
    size_t most = LOCAL_CHUNK / type_size(c->type);
    for (size_t done = 0, n; t == 0 && done < mine.n; done += n) {
        n = mine.n - done < most ? mine.n - done : most;
        for (int i = 0, k = 1; i < s->n; i++) {
            char *at = coll_at(c, shm_coll_direct(s, i), mine.at + done);
            s->in[i] = s->out[i == s->me ? 0 : k++] = at;
        }
        shm_coll_reduce(s, &s->giving, c, s->n, n);
    }
}

const struct coll_step shm_coll_arena = {NULL, all_reduce_in_arena, NULL};

/* Elements per chunk: the chunks of all ranks fit the caches, and there are enough of
 * them for the steps to overlap, where each rank has a CPU. */
size_t shm_coll_chunk(const struct shm *s, const struct coll *c)
{
    size_t room = LOCAL_CHUNK, size = type_size(c->type), line = SHM_LINE / size;
    if (c->kind == COLL_REDUCE_SCATTER)
        room = LOCAL_CHUNK / (size_t)s->n;
    size_t bytes = coll_most(c, s->n) * size / (s->shares_cpu ? 1 : 4) + SHM_LINE - 1;
    size_t chunk = bytes < room ? bytes : room;
    chunk = chunk / size / line * line;
    return chunk ? chunk : line;
}

static void announce(struct shm *s, struct coll *c, bool with_data)
{
    bool eager = with_data && is_eager(c, s->n);
    bool sends = c->kind != COLL_BROADCAST || s->ranks[s->me] == c->root;
    size_t bytes = gives(s, c, s->me);
    struct call call = coll_call(c, s->layout->size);
    shm_post(s, call.what, call.bytes, eager ? -1 : shm_where(s, c->send, bytes), c->send,
             eager && sends ? bytes : 0);
}

int shm_coll_meet(struct shm *s, struct coll *c, bool with_data, struct ddp_err *err)
{
    if (c->state == COLL_NEW && s)
        announce(s, c, with_data);
    c->state = COLL_ANNOUNCED;
    if (!s)
        return ADVANCE_DONE;
    if (!shm_all_posted(s))
        return ADVANCE_LATER;
    return check(s, c, err) < 0 ? ADVANCE_ERROR : ADVANCE_DONE;
}

bool shm_coll_reached(const struct shm *s, const struct coll *c, int local)
{
    const struct shm_rank *r = &s->rank[local];
    if (c->state == COLL_ANNOUNCED)
        return atomic_load(&r->post[s->seq & 1].seq) == s->seq;
    return (int32_t)(atomic_load(&r->step) - s->steps) >= 0;
}
