/* worker/group/shm_coll.c - collectives through shared memory
 *
 * A collective is a sequence of steps. In a step each rank does its share alone
 * (reduce, copy out); a barrier separates steps. The first barrier is the announcement:
 * it carries the arguments, so that mismatches are found, and the data themselves when
 * they are short. A rank copies in the data for step t + 1 after it has signalled the
 * barrier before step t, so that no rank waits for the copy.
 *
 * short data: announced with the arguments; then each rank reduces all of them, in rank
 * order: one barrier.
 *
 * buffers in the arena: in step 0 each rank reduces its slice of all buffers into all
 * buffers; nothing is copied.
 *
 * private buffers: before step t, copy chunk t into this rank's staging buffer; in step
 * t, copy the other ranks' slices of chunk t-2 out, and reduce this rank's slice of
 * chunk t-1 over all staging buffers.
 *
 * While chunk t is copied in, others may still be in step t-1 and read chunks t-3 and
 * t-2, and t-1 is waiting: hence SHM_STAGES.
 */
#include "worker/group/coll.h"

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
    if (c->kind == COLL_ALL_GATHER)
        return coll_block(c, s->ranks[local]).n * type_size(c->type);
    if (c->kind == COLL_REDUCE_SCATTER)
        return (size_t)coll_agreed(c, s->n);
    return coll_bytes(c);
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

/* ---- shares of the steps ---- */

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

/* The same, or in its buffer when that is in the arena. */
static char *given(const struct shm *s, const struct coll *c, int local, unsigned k,
                   size_t at)
{
    char *there = shm_coll_direct(s, local);
    return there ? coll_at(c, there, at) : shm_coll_staged(s, c, local, k, at);
}

void shm_coll_collect(const struct shm *s, const struct coll *c, unsigned k, int n,
                      int but)
{
    for (int i = 0; i < n; i++) {
        struct range of = range_slice(coll_chunk(c, k), c->type, i, n);
        if (i != but)
            coll_copy(c, coll_at(c, c->recv, of.at), shm_coll_staged(s, c, i, k, of.at),
                      of.n);
    }
}

/* Reduce this rank's slice of all buffers: in one pass, or into its own buffer first
 * and then copied; see all_reduce_slice(). */
static void all_reduce_in_arena(struct shm *s, struct coll *c, unsigned t)
{
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

/* All but this rank's slice, which no other rank reads. */
static void all_reduce_give(struct shm *s, struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t), of = range_slice(r, c->type, s->me, s->n);
    size_t behind = of.at + of.n;
    coll_copy(c, shm_stage(s, s->me, t), coll_at(c, c->recv, r.at), of.at - r.at);
    coll_copy(c, shm_coll_staged(s, c, s->me, t, behind), coll_at(c, c->recv, behind),
              r.at + r.n - behind);
}

/* Reduce this rank's slice of a chunk, in the user's buffer and in the staging buffer.
 * One pass is best where the ranks share a cache. Elsewhere each line of the staging
 * buffer must first be fetched from its last reader, which a copy of whole lines
 * avoids. */
static void all_reduce_slice(struct shm *s, struct coll *c, unsigned k)
{
    struct range of = range_slice(coll_chunk(c, k), c->type, s->me, s->n);
    size_t bytes = of.n * type_size(c->type);
    void *out[2] = {coll_at(c, c->recv, of.at), shm_coll_staged(s, c, s->me, k, of.at)};
    for (int i = 0; i < s->n; i++)
        s->in[i] = shm_coll_staged(s, c, i, k, of.at);
    s->in[s->me] = out[0];
    bool apart = autotune_begin(&s->showing, bytes) == 1;
    reduce_many(out, apart ? 1 : 2, s->in, s->n, of.n, c->type, c->op, s->n);
    if (apart)
        memcpy(out[1], out[0], bytes);
    autotune_end(&s->showing, bytes);
}

static void all_reduce_staged(struct shm *s, struct coll *c, unsigned t)
{
    if (t >= 2)
        shm_coll_collect(s, c, t - 2, s->n, s->me);
    if (t >= 1)
        all_reduce_slice(s, c, t - 1);
}

static void give_chunk(struct shm *s, struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t);
    if (!shm_coll_direct(s, s->me))
        coll_copy(c, shm_stage(s, s->me, t), coll_at(c, c->send, r.at), r.n);
}

static void broadcast_give(struct shm *s, struct coll *c, unsigned t)
{
    if (s->ranks[s->me] == c->root)
        give_chunk(s, c, t);
}

static void broadcast_take(struct shm *s, struct coll *c, unsigned t)
{
    int root = s->layout->members[c->root].local;
    if (s->me == root || t == 0)
        return;
    struct range r = coll_chunk(c, t - 1);
    coll_copy(c, coll_at(c, c->recv, r.at), given(s, c, root, t - 1, r.at), r.n);
}

/* Each rank reduces its slice into its staging buffer; the root writes its own in
 * place. */
static void reduce_share(struct shm *s, struct coll *c, unsigned t)
{
    bool root = s->ranks[s->me] == c->root;
    unsigned lead = shm_coll_all_direct(s) ? 0 : 1;
    if (root && t > lead)
        shm_coll_collect(s, c, t - lead - 1, s->n, s->me);
    if (t < lead)
        return;
    unsigned k = t - lead;
    struct range of = range_slice(coll_chunk(c, k), c->type, s->me, s->n);
    for (int i = 0; i < s->n; i++)
        s->in[i] = given(s, c, i, k, of.at);
    s->in[s->me] = coll_at(c, c->send, of.at);
    void *out =
        root ? coll_at(c, c->recv, of.at) : shm_coll_staged(s, c, s->me, k, of.at);
    reduce_many(&out, 1, s->in, s->n, of.n, c->type, c->op, s->n);
}

static void all_gather_give(struct shm *s, struct coll *c, unsigned t)
{
    struct range b = coll_block(c, s->me), r = coll_part(c, s->me, t);
    const char *mine = coll_at(c, c->send, r.at - b.at);
    char *to = coll_at(c, c->recv, r.at);
    if (!shm_coll_direct(s, s->me))
        coll_copy(c, shm_stage(s, s->me, t), mine, r.n);
    if (to != mine)
        coll_copy(c, to, mine, r.n);
}

static void all_gather_take(struct shm *s, struct coll *c, unsigned t)
{
    for (int i = 0; i < s->n && t > 0; i++) {
        const char *there = shm_coll_direct(s, i);
        struct range b = coll_block(c, i), r = coll_part(c, i, t - 1);
        if (i != s->me)
            coll_copy(c, coll_at(c, c->recv, r.at),
                      there ? coll_at(c, there, r.at - b.at) : shm_stage(s, i, t - 1),
                      r.n);
    }
}

/* A chunk has a part of each rank's block, side by side in the staging buffer. */
static void reduce_scatter_give(struct shm *s, struct coll *c, unsigned t)
{
    for (int i = 0; i < s->n && !shm_coll_direct(s, s->me); i++) {
        struct range r = coll_part(c, i, t);
        if (i != s->me)
            coll_copy(c, coll_at(c, shm_stage(s, s->me, t), (size_t)i * c->chunk),
                      coll_at(c, c->send, r.at), r.n);
    }
}

static void reduce_scatter_take(struct shm *s, struct coll *c, unsigned t)
{
    if (t == 0)
        return;
    struct range b = coll_block(c, s->me), r = coll_part(c, s->me, t - 1);
    for (int i = 0; i < s->n; i++) {
        const void *there = i == s->me ? c->send : shm_coll_direct(s, i);
        s->in[i] = there ? coll_at(c, there, r.at)
                         : coll_at(c, shm_stage(s, i, t - 1), (size_t)s->me * c->chunk);
    }
    void *out = coll_at(c, c->recv, r.at - b.at);
    reduce_many(&out, 1, s->in, s->n, r.n, c->type, c->op, s->n);
}

/* ---- the plan ---- */

static const struct {
    coll_work_fn give, work;
} shares[] = {
    [COLL_BROADCAST] = {broadcast_give, broadcast_take},
    [COLL_ALL_REDUCE] = {all_reduce_give, all_reduce_staged},
    [COLL_ALL_GATHER] = {all_gather_give, all_gather_take},
    [COLL_REDUCE] = {give_chunk, reduce_share},
    [COLL_REDUCE_SCATTER] = {reduce_scatter_give, reduce_scatter_take},
};

static void give_nothing(struct shm *s, struct coll *c, unsigned t) {}

/* Elements per chunk: the chunks of all ranks fit the caches, and there are enough of
 * them for the steps to overlap. */
static size_t chunk_elements(const struct shm *s, const struct coll *c)
{
    size_t room = LOCAL_CHUNK, size = type_size(c->type), line = SHM_LINE / size;
    if (c->kind == COLL_REDUCE_SCATTER)
        room = LOCAL_CHUNK / (size_t)s->n;
    size_t bytes = coll_most(c, s->n) * size / 4;
    size_t chunk = bytes < room ? bytes : room;
    chunk = chunk / size / line * line;
    return chunk ? chunk : line;
}

bool shm_coll_all_direct(const struct shm *s)
{
    for (int i = 0; i < s->n; i++) {
        if (!shm_coll_direct(s, i))
            return false;
    }
    return true;
}

static void plan(struct shm *s, struct coll *c)
{
    bool all_direct = shm_coll_all_direct(s), any_direct = false;
    for (int i = 0; i < s->n; i++)
        any_direct = any_direct || shm_coll_direct(s, i);
    bool whole = c->kind == COLL_BROADCAST
                     ? shm_coll_direct(s, s->layout->members[c->root].local) != NULL
                     : all_direct && c->kind != COLL_REDUCE;
    size_t most = coll_most(c, s->n);
    c->t = 0;
    c->chunk = whole ? most : chunk_elements(s, c);
    unsigned nchunks = (unsigned)((most + c->chunk - 1) / c->chunk);
    /* a buffer that others read is returned when all have read it */
    c->nsteps = nchunks + 1 + (any_direct ? 1 : 0);
    c->give = shares[c->kind].give;
    c->work = shares[c->kind].work;
    if (c->kind == COLL_ALL_REDUCE && whole) {
        c->give = give_nothing;
        c->work = all_reduce_in_arena;
        c->nsteps = 2;
    } else if (c->kind == COLL_ALL_REDUCE) {
        c->nsteps = nchunks + 2;
    } else if (c->kind == COLL_REDUCE) {
        c->nsteps = nchunks + (all_direct ? 1 : 2);
    }
}

/* `nsmall` bytes of data are announced with the arguments. */
void shm_coll_announce(struct shm *s, struct coll *c, size_t nsmall)
{
    int size = s->layout->size;
    bool speaks = c->kind != COLL_BROADCAST || s->ranks[s->me] == c->root;
    uint64_t agreed = coll_agreed(c, size);
    size_t reads = (size_t)agreed;
    if (c->kind == COLL_ALL_GATHER)
        reads = coll_block(c, s->ranks[s->me]).n * type_size(c->type);
    shm_post(s, coll_what(c), agreed, nsmall ? -1 : shm_where(s, c->send, reads), c->send,
             speaks ? nsmall : 0);
}

int shm_coll_advance(struct shm *s, struct coll *c, struct ddp_err *err)
{
    bool eager = is_eager(c, s->n);
    for (;;) {
        switch (c->state) {
        case COLL_NEW:
            shm_coll_announce(s, c, eager ? gives(s, c, s->me) : 0);
            c->state = COLL_ANNOUNCED;
            break;
        case COLL_ANNOUNCED:
            if (!shm_all_posted(s))
                return ADVANCE_LATER;
            if (shm_coll_check(s, c, err) < 0)
                return ADVANCE_ERROR;
            if (eager)
                eager_finish(s, c);
            if (eager || c->kind == COLL_BARRIER || coll_most(c, s->n) == 0)
                return ADVANCE_DONE;
            plan(s, c);
            c->give(s, c, 0);
            c->state = COLL_WORKS;
            break;
        case COLL_WORKS:
            c->work(s, c, c->t++);
            if (c->t == c->nsteps)
                return ADVANCE_DONE;
            shm_step(s);
            c->give(s, c, c->t);
            c->state = COLL_WAITS;
            break;
        case COLL_WAITS:
            if (!shm_all_stepped(s))
                return ADVANCE_LATER;
            c->state = COLL_WORKS;
            break;
        }
    }
}

bool shm_coll_reached(const struct shm *s, const struct coll *c, int local)
{
    const struct shm_rank *r = &s->rank[local];
    if (c->state == COLL_ANNOUNCED)
        return atomic_load(&r->post[s->seq & 1].seq) == s->seq;
    return (int32_t)(atomic_load(&r->step) - s->steps) >= 0;
}
