/* worker/group/local.c - collectives through shared memory
 *
 * Every collective is a row of steps. In a step each rank does its share alone (reduce,
 * copy out); between two steps all wait for each other. The first of these meetings is
 * the announcement, which also carries the arguments, so that ranks that disagree are
 * told, and the data themselves when they are few. What a rank gives to the next but one
 * meeting it copies in after it has announced that it comes to the next, so that nobody
 * waits for it.
 *
 *   few bytes       announce with the data; then each rank reduces all of them, in rank
 *                   order: one meeting
 *   in the arena    step 0: each rank reduces its slice of everybody's buffers into
 *                   everybody's buffers; meet: nothing is copied
 *   elsewhere       before step t: copy chunk t to my staging room; in it: copy the
 *                   others' slices of chunk t-2 out; reduce my slice of chunk t-1 over
 * all staging rooms
 *
 * While chunk t is copied in others may still be in step t-1, and read chunks t-3 and
 * t-2; t-1 is waiting: hence SHM_STAGES.
 */
#include "worker/group/coll.h"

#include "common/err.h"
#include "worker/group/reduce.h"

#include <string.h>

/* Bytes per rank and step: a few of everybody's fit the caches. */
enum { LOCAL_CHUNK = 262144 };

int local_check(const struct shm *s, const struct coll *c, struct ddp_err *err)
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

/* What a local rank gives, in bytes. */
static size_t gives(const struct shm *s, const struct coll *c, int local)
{
    if (c->kind == COLL_ALL_GATHER)
        return coll_block(c, s->ranks[local]).n * type_size(c->type);
    if (c->kind == COLL_REDUCE_SCATTER)
        return (size_t)coll_agreed(c, s->n);
    return coll_bytes(c);
}

/* Does what each gives fit beside the announcements? */
static bool is_eager(const struct coll *c, int n)
{
    return c->kind != COLL_BARRIER && coll_most(c, n) > 0 &&
           coll_most(c, n) * type_size(c->type) <=
               SHM_EAGER / (c->kind == COLL_REDUCE_SCATTER ? (size_t)n : 1);
}

/* My own where I have it: the line in which I showed it is on its way to the others. */
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
        s->in[i] = eager_data(s, c, i) + of.at * type_size(c->type);
    reduce_many(&c->recv, 1, s->in, s->n, of.n, c->type, c->op, s->n);
}

static void eager_finish(struct shm *s, struct coll *c)
{
    int root = s->layout->members[c->root].local;
    if (c->kind == COLL_BROADCAST && s->me != root)
        memcpy(c->recv, eager_data(s, c, root), coll_bytes(c));
    else if (c->kind == COLL_ALL_REDUCE || c->kind == COLL_REDUCE_SCATTER ||
             (c->kind == COLL_REDUCE && s->me == root))
        eager_reduce(s, c);
    for (int i = 0; i < s->n && c->kind == COLL_ALL_GATHER; i++) {
        struct range b = coll_block(c, i);
        memmove((char *)c->recv + b.at * type_size(c->type), eager_data(s, c, i),
                b.n * type_size(c->type));
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

char *local_direct(const struct shm *s, int local)
{
    int64_t where = s->rank[local].post[s->seq & 1].where;
    return where >= 0 ? s->base + where : NULL;
}

/* My slice of everybody's buffers, in one pass, or in mine first and from there to the
 * others: what stands here of "apart" is what all_reduce_slice() says. */
static void all_reduce_in_arena(struct shm *s, struct coll *c, unsigned t)
{
    if (t > 0)
        return;
    size_t size = type_size(c->type);
    struct range mine = range_slice((struct range){0, c->count}, c->type, s->me, s->n);
    bool apart = ways_begin(&s->giving, mine.n * size) == 1;
    size_t most = apart ? LOCAL_CHUNK / size : mine.n;
    for (size_t done = 0, n; done < mine.n; done += n) {
        n = mine.n - done < most ? mine.n - done : most;
        for (int i = 0; i < s->n; i++) {
            s->out[i] = local_direct(s, i) + (mine.at + done) * size;
            s->in[i] = s->out[i];
        }
        void *const *out = apart ? &s->out[s->me] : s->out;
        reduce_many(out, apart ? 1 : s->n, s->in, s->n, n, c->type, c->op, s->n);
        for (int i = 0; apart && i < s->n; i++)
            if (i != s->me)
                memcpy(s->out[i], s->out[s->me], n * size);
    }
    ways_end(&s->giving, mine.n * size);
}

/* All but my own slice, which nobody else reads. */
static void all_reduce_give(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    const char *data = c->recv;
    struct range r = coll_chunk(c, t), of = range_slice(r, c->type, s->me, s->n);
    size_t behind = of.at + of.n;
    char *stage = shm_stage(s, s->me, t);
    memcpy(stage, data + r.at * size, (of.at - r.at) * size);
    memcpy(stage + (behind - r.at) * size, data + behind * size,
           (r.at + r.n - behind) * size);
}

/* My slice of a chunk, where it was and on my stage. One pass is best where the others
 * share a cache with me. Elsewhere each line of the stage must first be taken back from
 * who read it last, which a copy, as it writes whole lines, can do without. */
static void all_reduce_slice(struct shm *s, struct coll *c, unsigned k)
{
    struct range r = coll_chunk(c, k), of = range_slice(r, c->type, s->me, s->n);
    size_t size = type_size(c->type), skip = (of.at - r.at) * size;
    char *mine = (char *)c->recv + of.at * size;
    for (int i = 0; i < s->n; i++)
        s->in[i] = shm_stage(s, i, k) + skip;
    s->in[s->me] = mine;
    void *out[2] = {mine, shm_stage(s, s->me, k) + skip};
    bool apart = ways_begin(&s->showing, of.n * size) == 1;
    reduce_many(out, apart ? 1 : 2, s->in, s->n, of.n, c->type, c->op, s->n);
    if (apart)
        memcpy(out[1], mine, of.n * size);
    ways_end(&s->showing, of.n * size);
}

static void all_reduce_staged(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    if (t == 0)
        return;
    struct range r = t >= 2 ? coll_chunk(c, t - 2) : (struct range){0, 0};
    for (int i = 0; i < s->n && r.n > 0; i++) {
        struct range of = range_slice(r, c->type, i, s->n);
        if (i != s->me)
            memcpy((char *)c->recv + of.at * size,
                   shm_stage(s, i, t - 2) + (of.at - r.at) * size, of.n * size);
    }
    all_reduce_slice(s, c, t - 1);
}

static void broadcast_give(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    struct range r = coll_chunk(c, t);
    if (s->ranks[s->me] == c->root && !local_direct(s, s->me))
        memcpy(shm_stage(s, s->me, t), (const char *)c->send + r.at * size, r.n * size);
}

static void broadcast_take(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    int root = s->layout->members[c->root].local;
    const char *there = local_direct(s, root);
    if (s->me == root || t == 0)
        return;
    struct range r = coll_chunk(c, t - 1);
    memcpy((char *)c->recv + r.at * size,
           there ? there + r.at * size : shm_stage(s, root, t - 1), r.n * size);
}

static void reduce_give(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    struct range r = coll_chunk(c, t);
    if (!local_direct(s, s->me))
        memcpy(shm_stage(s, s->me, t), (const char *)c->send + r.at * size, r.n * size);
}

/* The slices of a chunk meet in the stages of those who have reduced them; the root,
 * which alone may write where it reads, has its own at once. */
static void reduce_share(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    bool root = s->ranks[s->me] == c->root;
    unsigned lead = local_all_direct(s) ? 0 : 1;
    if (root && t > lead) {
        unsigned k = t - lead - 1;
        struct range r = coll_chunk(c, k);
        for (int i = 0; i < s->n; i++) {
            struct range of = range_slice(r, c->type, i, s->n);
            if (i != s->me)
                memcpy((char *)c->recv + of.at * size,
                       shm_stage(s, i, k) + (of.at - r.at) * size, of.n * size);
        }
    }
    if (t < lead)
        return;
    unsigned k = t - lead;
    struct range r = coll_chunk(c, k), of = range_slice(r, c->type, s->me, s->n);
    for (int i = 0; i < s->n; i++) {
        const char *there = local_direct(s, i);
        s->in[i] =
            there ? there + of.at * size : shm_stage(s, i, k) + (of.at - r.at) * size;
    }
    s->in[s->me] = (const char *)c->send + of.at * size;
    void *out = root ? (char *)c->recv + of.at * size
                     : shm_stage(s, s->me, k) + (of.at - r.at) * size;
    reduce_many(&out, 1, s->in, s->n, of.n, c->type, c->op, s->n);
}

static void all_gather_give(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    char *recv = c->recv;
    struct range b = coll_block(c, s->me), r = coll_part(c, s->me, t);
    const char *mine = (const char *)c->send + (r.at - b.at) * size;
    if (!local_direct(s, s->me))
        memcpy(shm_stage(s, s->me, t), mine, r.n * size);
    if (recv + r.at * size != mine)
        memcpy(recv + r.at * size, mine, r.n * size);
}

static void all_gather_take(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    for (int i = 0; i < s->n && t > 0; i++) {
        const char *there = local_direct(s, i);
        struct range b = coll_block(c, i), r = coll_part(c, i, t - 1);
        if (i != s->me)
            memcpy((char *)c->recv + r.at * size,
                   there ? there + (r.at - b.at) * size : shm_stage(s, i, t - 1),
                   r.n * size);
    }
}

/* A chunk is a part of every rank's block; the parts lie side by side in the stage. */
static void reduce_scatter_give(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    const char *send = c->send;
    for (int i = 0; i < s->n && !local_direct(s, s->me); i++) {
        struct range r = coll_part(c, i, t);
        if (i != s->me)
            memcpy(shm_stage(s, s->me, t) + (size_t)i * c->chunk * size,
                   send + r.at * size, r.n * size);
    }
}

static void reduce_scatter_take(struct shm *s, struct coll *c, unsigned t)
{
    size_t size = type_size(c->type);
    if (t == 0)
        return;
    struct range b = coll_block(c, s->me), r = coll_part(c, s->me, t - 1);
    for (int i = 0; i < s->n; i++) {
        const char *there = i == s->me ? c->send : local_direct(s, i);
        s->in[i] = there ? there + r.at * size
                         : shm_stage(s, i, t - 1) + (size_t)s->me * c->chunk * size;
    }
    void *out = (char *)c->recv + (r.at - b.at) * size;
    reduce_many(&out, 1, s->in, s->n, r.n, c->type, c->op, s->n);
}

/* ---- the plan ---- */

static const struct {
    coll_work_fn give, work;
} shares[] = {
    [COLL_BROADCAST] = {broadcast_give, broadcast_take},
    [COLL_ALL_REDUCE] = {all_reduce_give, all_reduce_staged},
    [COLL_ALL_GATHER] = {all_gather_give, all_gather_take},
    [COLL_REDUCE] = {reduce_give, reduce_share},
    [COLL_REDUCE_SCATTER] = {reduce_scatter_give, reduce_scatter_take},
};

static void give_nothing(struct shm *s, struct coll *c, unsigned t) {}

/* Elements per chunk: a chunk of everybody's fits the caches, and there are enough of
 * them that the steps overlap. */
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

bool local_all_direct(const struct shm *s)
{
    for (int i = 0; i < s->n; i++) {
        if (!local_direct(s, i))
            return false;
    }
    return true;
}

static void plan(struct shm *s, struct coll *c)
{
    bool all_direct = local_all_direct(s), any_direct = false;
    for (int i = 0; i < s->n; i++)
        any_direct = any_direct || local_direct(s, i);
    bool whole = c->kind == COLL_BROADCAST
                     ? local_direct(s, s->layout->members[c->root].local) != NULL
                     : all_direct && c->kind != COLL_REDUCE;
    size_t most = coll_most(c, s->n);
    c->t = 0;
    c->chunk = whole ? most : chunk_elements(s, c);
    unsigned nchunks = (unsigned)((most + c->chunk - 1) / c->chunk);
    /* a buffer that others read is given back only when all have read it */
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

/* `nsmall` bytes go with the announcement. */
void local_announce(struct shm *s, struct coll *c, size_t nsmall)
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

int local_advance(struct shm *s, struct coll *c, struct ddp_err *err)
{
    bool eager = is_eager(c, s->n);
    for (;;) {
        switch (c->state) {
        case COLL_NEW:
            local_announce(s, c, eager ? gives(s, c, s->me) : 0);
            c->state = COLL_ANNOUNCED;
            break;
        case COLL_ANNOUNCED:
            if (!shm_all_posted(s))
                return ADVANCE_LATER;
            if (local_check(s, c, err) < 0)
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

bool local_reached(const struct shm *s, const struct coll *c, int local)
{
    const struct shm_rank *r = &s->rank[local];
    if (c->state == COLL_ANNOUNCED)
        return atomic_load(&r->post[s->seq & 1].seq) == s->seq;
    return (int32_t)(atomic_load(&r->step) - s->steps) >= 0;
}
