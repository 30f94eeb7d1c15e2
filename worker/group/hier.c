/* worker/group/hier.c - see hier.h
 *
 * A rank that shares its host works in the steps of local.c, with one difference: a step
 * may contain an operation on the network, so that it ends later than it began. The cut
 * into chunks depends on the sizes alone, never on where a rank keeps its buffer: it must
 * be the same on all hosts.
 *
 *   all_reduce at step t    copy chunk t to the staging room (or it is in the arena);
 *                           channels reduce their slice of chunk t-1 over the host, then
 *                           over the hosts; everybody copies the slices of chunk t-2
 *   broadcast at step t     the speakers pass chunk t from host to host; the others copy
 *                           chunk t-1 from theirs
 *
 * all_gather and reduce_scatter are rings when there is one rank per host. Otherwise they
 * are made of broadcasts and of one all_reduce: not the least traffic, but few lines, and
 * data parallel training does not use them over hosts.
 */
#include "worker/group/hier.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/reduce.h"

#include <stdlib.h>
#include <string.h>

static struct head head_of(const struct coll *c)
{
    return (struct head){
        .what = coll_what(c), .bytes = coll_bytes(c), .number = c->number};
}

static unsigned chunk_count(const struct coll *c)
{
    return (unsigned)((c->count + c->chunk - 1) / c->chunk);
}

/* My place in a team of one rank per host is my host. */
static void start_reduce(const struct hier *h, struct coll *c, struct range r)
{
    size_t size = type_size(c->type);
    net_all_reduce(&c->net, head_of(c), h->team, h->layout->nhosts, h->host,
                   (char *)c->recv + r.at * size, r.n, c->type, c->op);
    c->on_net = true;
}

static void choose_speakers(const struct hier *h, const struct coll *c)
{
    for (int i = 0; i < h->layout->nhosts; i++)
        h->speakers[i] = h->layout->by_host[h->layout->host_start[i]];
    h->speakers[h->layout->members[c->root].host] = c->root;
}

static void start_broadcast(const struct hier *h, struct coll *c, struct range r)
{
    size_t size = type_size(c->type);
    net_broadcast(&c->net, head_of(c), h->speakers, h->layout->nhosts, h->host,
                  h->layout->members[c->root].host, (char *)c->recv + r.at * size,
                  r.n * size);
    c->on_net = true;
}

static void start_barrier(const struct hier *h, struct coll *c)
{
    net_all_reduce(&c->net, head_of(c), h->speakers, h->layout->nhosts, h->host, NULL, 0,
                   DDP_U8, DDP_SUM);
    c->on_net = true;
}

/* ---- alone on this host ---- */

static void start_chunk(const struct hier *h, struct coll *c)
{
    struct range r = coll_chunk(c, c->t);
    if (c->kind == COLL_BARRIER)
        start_barrier(h, c);
    else if (c->kind == COLL_BROADCAST)
        start_broadcast(h, c, r);
    else
        start_reduce(h, c, r);
}

static void start_ring(const struct hier *h, struct coll *c)
{
    size_t bytes = coll_bytes(c), n = (size_t)h->layout->nhosts;
    if (c->kind == COLL_ALL_GATHER) {
        char *own = (char *)c->recv + (size_t)h->host * bytes;
        if (own != c->send && bytes > 0)
            memcpy(own, c->send, bytes);
        net_all_gather(&c->net, head_of(c), h->speakers, (int)n, h->host, c->recv, bytes);
    } else {
        c->scratch = malloc(n * bytes + 1);
        if (c->scratch && bytes > 0)
            memcpy(c->scratch, c->send, n * bytes);
        net_reduce_scatter(&c->net, head_of(c), h->speakers, (int)n, h->host, c->scratch,
                           c->count, c->type, c->op);
    }
    c->on_net = true;
}

static void finish_alone(const struct hier *h, struct coll *c)
{
    size_t bytes = coll_bytes(c);
    if (c->kind == COLL_REDUCE_SCATTER && bytes > 0)
        memcpy(c->recv, c->scratch + (size_t)h->host * bytes, bytes);
    if (c->kind == COLL_REDUCE_SCATTER || c->kind == COLL_ALL_REDUCE)
        reduce_finish(c->recv, c->count, c->type, c->op, h->layout->size);
}

static int net_part(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err)
{
    int rc = net_op_advance(h->net, &c->net, culprit, err);
    if (rc == ADVANCE_DONE) {
        net_op_finish(&c->net);
        c->on_net = false;
    }
    return rc;
}

static int alone_advance(struct hier *h, struct coll *c, int *culprit,
                         struct ddp_err *err)
{
    bool ring = c->kind == COLL_ALL_GATHER || c->kind == COLL_REDUCE_SCATTER;
    for (;;) {
        if (!c->on_net) {
            if (c->t == c->nsteps) {
                finish_alone(h, c);
                return ADVANCE_DONE;
            }
            if (ring)
                start_ring(h, c);
            else
                start_chunk(h, c);
            if (ring && c->kind == COLL_REDUCE_SCATTER && !c->scratch)
                return err_set(err, "no memory for a copy of %zu bytes",
                               coll_bytes(c) * (size_t)h->layout->nhosts);
        }
        int rc = net_part(h, c, culprit, err);
        if (rc != ADVANCE_DONE)
            return rc;
        c->t++;
    }
}

/* ---- together with others of this host ---- */

static bool all_direct(const struct shm *s)
{
    for (int i = 0; i < s->n; i++) {
        if (!local_direct(s, i))
            return false;
    }
    return true;
}

static void copy_slices_out(const struct hier *h, struct coll *c, unsigned chunk,
                            bool whole)
{
    size_t size = type_size(c->type);
    struct range r = coll_chunk(c, chunk);
    for (int i = 0; i < h->nchannels; i++) {
        struct range of = range_slice(r, c->type, i, h->nchannels);
        const char *from = whole ? local_direct(h->shm, i) + of.at * size
                                 : shm_stage(h->shm, i, chunk) + (of.at - r.at) * size;
        if (i != h->local)
            memcpy((char *)c->recv + of.at * size, from, of.n * size);
    }
}

/* My slice of a chunk over the ranks of this host, into my buffer. */
static struct range reduce_slice(const struct hier *h, struct coll *c, unsigned chunk,
                                 bool whole)
{
    struct shm *s = h->shm;
    size_t size = type_size(c->type);
    struct range r = coll_chunk(c, chunk);
    struct range of = range_slice(r, c->type, h->local, h->nchannels);
    for (int i = 0; i < s->n; i++)
        s->in[i] = whole ? local_direct(s, i) + of.at * size
                         : shm_stage(s, i, chunk) + (of.at - r.at) * size;
    void *out = (char *)c->recv + of.at * size;
    reduce_many(&out, 1, s->in, s->n, of.n, c->type, c->op, 0);
    return of;
}

static void reduce_begin(struct hier *h, struct coll *c, unsigned t)
{
    bool whole = all_direct(h->shm);
    unsigned lead = whole ? 0 : 1, nchunks = chunk_count(c);
    if (t > lead)
        copy_slices_out(h, c, t - lead - 1, whole);
    if (!whole && t < nchunks) {
        struct range r = coll_chunk(c, t);
        size_t size = type_size(c->type);
        memcpy(shm_stage(h->shm, h->local, t), (char *)c->recv + r.at * size, r.n * size);
    }
    if (h->local < h->nchannels && t >= lead && t - lead < nchunks)
        start_reduce(h, c, reduce_slice(h, c, t - lead, whole));
}

static void reduce_end(struct hier *h, struct coll *c, unsigned t)
{
    bool whole = all_direct(h->shm);
    size_t size = type_size(c->type);
    unsigned chunk = whole ? t : t - 1;
    struct range r = coll_chunk(c, chunk);
    struct range of = range_slice(r, c->type, h->local, h->nchannels);
    char *mine = (char *)c->recv + of.at * size;
    reduce_finish(mine, of.n, c->type, c->op, h->layout->size);
    if (!whole)
        memcpy(shm_stage(h->shm, h->local, chunk) + (of.at - r.at) * size, mine,
               of.n * size);
}

static bool speaks(const struct hier *h)
{
    return h->speakers[h->host] == h->layout->rank;
}

static void broadcast_begin(struct hier *h, struct coll *c, unsigned t)
{
    struct shm *s = h->shm;
    int speaker = h->layout->members[h->speakers[h->host]].local;
    size_t size = type_size(c->type);
    if (speaks(h) && t < chunk_count(c)) {
        start_broadcast(h, c, coll_chunk(c, t));
    } else if (!speaks(h) && t > 0) {
        struct range r = coll_chunk(c, t - 1);
        const char *there = local_direct(s, speaker);
        memcpy((char *)c->recv + r.at * size,
               there ? there + r.at * size : shm_stage(s, speaker, t - 1), r.n * size);
    }
}

static void broadcast_end(struct hier *h, struct coll *c, unsigned t)
{
    struct range r = coll_chunk(c, t);
    size_t size = type_size(c->type);
    if (!local_direct(h->shm, h->local))
        memcpy(shm_stage(h->shm, h->local, t), (char *)c->recv + r.at * size, r.n * size);
}

static void step_begin(struct hier *h, struct coll *c)
{
    if (c->kind == COLL_ALL_REDUCE)
        reduce_begin(h, c, c->t);
    else if (c->kind == COLL_BROADCAST)
        broadcast_begin(h, c, c->t);
    else if (c->t == 0 && speaks(h))
        start_barrier(h, c);
}

static void step_end(struct hier *h, struct coll *c)
{
    if (c->kind == COLL_ALL_REDUCE)
        reduce_end(h, c, c->t);
    else if (c->kind == COLL_BROADCAST)
        broadcast_end(h, c, c->t);
}

/* The last step has no share: until then a buffer in the arena is read by others. */
static unsigned step_count(const struct coll *c)
{
    return c->kind == COLL_BARRIER ? 2 : chunk_count(c) + 2;
}

static int together_advance(struct hier *h, struct coll *c, int *culprit,
                            struct ddp_err *err)
{
    struct shm *s = h->shm;
    for (;;) {
        switch (c->state) {
        case COLL_NEW:
            local_announce(s, c, 0);
            c->state = COLL_ANNOUNCED;
            break;
        case COLL_ANNOUNCED:
            if (!shm_all_posted(s))
                return ADVANCE_LATER;
            if (local_check(s, c, err) < 0)
                return ADVANCE_ERROR;
            c->nsteps = step_count(c);
            step_begin(h, c);
            c->state = COLL_WORKS;
            break;
        case COLL_WORKS:
            if (c->on_net) {
                int rc = net_part(h, c, culprit, err);
                if (rc != ADVANCE_DONE)
                    return rc;
                step_end(h, c);
            }
            if (++c->t == c->nsteps)
                return ADVANCE_DONE;
            shm_step(s);
            c->state = COLL_WAITS;
            break;
        case COLL_WAITS:
            if (!shm_all_stepped(s))
                return ADVANCE_LATER;
            step_begin(h, c);
            c->state = COLL_WORKS;
            break;
        }
    }
}

/* ---- made of others ---- */

static int next_part(struct hier *h, struct coll *c, struct ddp_err *err)
{
    size_t bytes = coll_bytes(c);
    struct coll part = {.count = c->count, .type = c->type, .number = c->number};
    if (c->kind == COLL_ALL_GATHER) {
        char *block = (char *)c->recv + (size_t)c->nparts * bytes;
        if ((int)c->nparts == h->layout->rank && block != c->send && bytes > 0)
            memcpy(block, c->send, bytes);
        part.kind = COLL_BROADCAST;
        part.root = (int)c->nparts;
        part.send = part.recv = block;
    } else {
        size_t all = bytes * (size_t)h->layout->size;
        c->scratch = malloc(all + 1);
        if (!c->scratch)
            return err_set(err, "no memory for a copy of %zu bytes", all);
        if (all > 0)
            memcpy(c->scratch, c->send, all);
        part.kind = COLL_ALL_REDUCE;
        part.op = c->op;
        part.count = c->count * (size_t)h->layout->size;
        part.send = part.recv = c->scratch;
    }
    c->part = xmemdup(&part, sizeof part);
    return 0;
}

static int parts_advance(struct hier *h, struct coll *c, int *culprit,
                         struct ddp_err *err)
{
    unsigned n = c->kind == COLL_ALL_GATHER ? (unsigned)h->layout->size : 1;
    size_t bytes = coll_bytes(c);
    while (c->nparts < n) {
        if (!c->part && next_part(h, c, err) < 0)
            return ADVANCE_ERROR;
        int rc = hier_advance(h, c->part, culprit, err);
        if (rc != ADVANCE_DONE)
            return rc;
        coll_finish(c->part);
        free(c->part);
        c->part = NULL;
        c->nparts++;
    }
    if (c->kind == COLL_REDUCE_SCATTER && bytes > 0)
        memcpy(c->recv, c->scratch + (size_t)h->layout->rank * bytes, bytes);
    return ADVANCE_DONE;
}

/* ---- all ---- */

static void prepare(struct hier *h, struct coll *c)
{
    size_t line = SHM_LINE / type_size(c->type);
    c->chunk = h->flat ? c->count : SHM_CHUNK / type_size(c->type);
    c->chunk = c->chunk ? c->chunk : line;
    c->nsteps = c->kind == COLL_BARRIER ? 1 : chunk_count(c);
    if (c->kind == COLL_ALL_GATHER || c->kind == COLL_REDUCE_SCATTER)
        c->nsteps = 1;
    choose_speakers(h, c);
}

int hier_advance(struct hier *h, struct coll *c, int *culprit, struct ddp_err *err)
{
    *culprit = -1;
    if (c->kind != COLL_BARRIER && c->count == 0)
        c->kind = COLL_BARRIER; /* nothing to move, but everybody has come */
    if ((c->kind == COLL_ALL_GATHER || c->kind == COLL_REDUCE_SCATTER) && !h->flat)
        return parts_advance(h, c, culprit, err);
    if (c->chunk == 0)
        prepare(h, c);
    return h->shm ? together_advance(h, c, culprit, err)
                  : alone_advance(h, c, culprit, err);
}

struct hier *hier_create(const struct layout *l, struct net *net, struct shm *shm)
{
    struct hier *h = xcalloc(1, sizeof *h);
    size_t nhosts = (size_t)l->nhosts;
    *h = (struct hier){.layout = l,
                       .net = net,
                       .shm = shm,
                       .nchannels = l->size,
                       .host = l->members[l->rank].host,
                       .local = l->members[l->rank].local,
                       .flat = l->nhosts == l->size};
    for (int i = 0; i < l->nhosts; i++) {
        int n;
        layout_host(l, i, &n);
        h->nchannels = n < h->nchannels ? n : h->nchannels;
    }
    h->speakers = xcalloc(nhosts, sizeof *h->speakers);
    if (h->local < h->nchannels) {
        h->team = xcalloc(nhosts, sizeof *h->team);
        for (int i = 0; i < l->nhosts; i++)
            h->team[i] = l->by_host[l->host_start[i] + h->local];
    }
    return h;
}

void hier_destroy(struct hier *h)
{
    if (!h)
        return;
    free(h->team);
    free(h->speakers);
    free(h);
}
