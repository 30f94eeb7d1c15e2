/* worker/group/nccl.c - collectives and messages of CUDA memory, by libnccl
 *
 * The library is found at run time, so that ours also loads where there is none. Rank 0's
 * unique id goes to the others through the group below. Everything runs on one stream of
 * our own; an event behind each operation says when it has ended, and while it has not,
 * NCCL is asked for errors. Messages that were started since the last look go out as one
 * NCCL group, so that both sides may isend before either receives; NCCL knows no tags, it
 * pairs in order.
 *
 * The call by which the ranks of NCCL meet is made aside, in a thread of its own, and
 * given up at the group's deadline.
 *
 * What a caller has queued on a stream must have been done before it calls: as with host
 * memory, the buffer belongs to the request until it has ended.
 */
#include "worker/group/backend.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/group/cuda.h"
#include "worker/group/messages.h"
#include "worker/group/reduce.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct nccl_id { /* ncclUniqueId */
    char bytes[128];
};

struct nccl {
    void *comm;
    cuda_stream stream;
    cuda_event of_coll, of_batch;
    struct row waiting, batch; /* messages not yet handed over, and those under way */
};

static struct {
    void *library;
    int (*unique_id)(struct nccl_id *id);
    int (*init)(void **comm, int size, struct nccl_id id, int rank);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *error);
    const char *(*error_text)(int error);
    int (*begin)(void);
    int (*end)(void);
    int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, void *comm,
                      cuda_stream s);
    int (*broadcast)(const void *in, void *out, size_t n, int type, int root, void *comm,
                     cuda_stream s);
    int (*reduce)(const void *in, void *out, size_t n, int type, int op, int root,
                  void *comm, cuda_stream s);
    int (*all_gather)(const void *in, void *out, size_t n, int type, void *comm,
                      cuda_stream s);
    int (*reduce_scatter)(const void *in, void *out, size_t n, int type, int op,
                          void *comm, cuda_stream s);
    int (*send)(const void *in, size_t n, int type, int peer, void *comm, cuda_stream s);
    int (*recv)(void *out, size_t n, int type, int peer, void *comm, cuda_stream s);
} nccl;

/* Their numbers. */
enum { IN_PROGRESS = 7, BYTES = 1 };
static const int their_types[] = {
    [DDP_F32] = 7, [DDP_F64] = 8, [DDP_I32] = 2,  [DDP_I64] = 4,
    [DDP_U8] = 1,  [DDP_F16] = 6, [DDP_BF16] = 9, [DDP_I8] = 0};
static const int their_ops[] = {
    [DDP_SUM] = 0, [DDP_PRODUCT] = 1, [DDP_MAX] = 2,  [DDP_MIN] = 3,
    [DDP_AVG] = 4, [DDP_BAND] = -1,   [DDP_BOR] = -1, [DDP_BXOR] = -1};

static int load(struct ddp_err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct {
        const char *name;
        void *to;
    } names[] = {
        {"ncclGetUniqueId", &nccl.unique_id},
        {"ncclCommInitRank", &nccl.init},
        {"ncclCommDestroy", &nccl.destroy},
        {"ncclCommAbort", &nccl.abort},
        {"ncclCommGetAsyncError", &nccl.async_error},
        {"ncclGetErrorString", &nccl.error_text},
        {"ncclGroupStart", &nccl.begin},
        {"ncclGroupEnd", &nccl.end},
        {"ncclAllReduce", &nccl.all_reduce},
        {"ncclBroadcast", &nccl.broadcast},
        {"ncclReduce", &nccl.reduce},
        {"ncclAllGather", &nccl.all_gather},
        {"ncclReduceScatter", &nccl.reduce_scatter},
        {"ncclSend", &nccl.send},
        {"ncclRecv", &nccl.recv},
    };
    int rc = 0;
    pthread_mutex_lock(&lock);
    void *library = nccl.library ? nccl.library : dlopen("libnccl.so.2", RTLD_NOW);
    if (!library)
        rc = err_set(err, "NCCL cannot be loaded: %.300s", dlerror());
    for (size_t i = 0; i < ARRAY_LEN(names) && rc == 0 && !nccl.library; i++) {
        void *found = dlsym(library, names[i].name);
        if (!found)
            rc = err_set(err, "this NCCL has no %s", names[i].name);
        *(void **)names[i].to = found;
    }
    nccl.library = rc == 0 ? library : NULL;
    pthread_mutex_unlock(&lock);
    return rc;
}

static int check(int rc, const char *what, struct ddp_err *err)
{
    return rc == 0 || rc == IN_PROGRESS
               ? 0
               : err_set(err, "%s: %s", what, nccl.error_text(rc));
}

/* ---- life ---- */

static int device_of_rank(const struct ddp_group *g)
{
    const char *local = getenv("LOCAL_RANK");
    return local ? atoi(local) : g->layout.members[g->layout.rank].local;
}

static void nccl_close(struct ddp_group *g)
{
    struct nccl *n = g->foreign;
    if (!n)
        return;
    if (n->comm) {
        if (g->broken)
            nccl.abort(n->comm); /* does not wait for the others */
        else
            nccl.destroy(n->comm);
    }
    cuda_event_destroy(n->of_coll);
    cuda_event_destroy(n->of_batch);
    cuda_stream_destroy(n->stream);
    free(n);
    g->foreign = NULL;
}

/* ncclCommInitRank(), which waits for the others and knows no deadline. */
struct init {
    void *context, *comm;
    struct nccl_id id;
    int size, rank, rc;
};

static void call_init(void *copy)
{
    struct init *i = copy;
    cuda_use_context(i->context);
    i->rc = nccl.init(&i->comm, i->size, i->id, i->rank);
}

static int init_comm(struct ddp_group *g, struct nccl *n, struct nccl_id id,
                     struct ddp_err *err)
{
    struct init i = {cuda_context(), NULL, id, g->layout.size, g->layout.rank, 0};
    if (backend_aside(g, call_init, &i, sizeof i, "ncclCommInitRank",
                      "look at NCCL_SOCKET_IFNAME, and at what NCCL_DEBUG=INFO says",
                      err) < 0)
        return -1;
    n->comm = i.rc == 0 ? i.comm : NULL;
    return check(i.rc, "ncclCommInitRank", err) < 0 ? group_failed(g, err) : 0;
}

static int nccl_open(struct ddp_group *g, struct ddp_err *err)
{
    struct nccl_id id = {{0}};
    struct nccl *n = g->foreign = xcalloc(1, sizeof *n);
    if (load(err) < 0 || cuda_open(device_of_rank(g), err) < 0)
        return -1;
    if (g->layout.rank == 0 && check(nccl.unique_id(&id), "ncclGetUniqueId", err) < 0)
        return -1;
    if (group_share(g, id.bytes, sizeof id.bytes, err) < 0)
        return -1;
    if (cuda_stream_create(&n->stream, err) < 0 ||
        cuda_event_create(&n->of_coll, err) < 0 ||
        cuda_event_create(&n->of_batch, err) < 0)
        return -1;
    return init_comm(g, n, id, err);
}

/* ---- collectives ---- */

static char *at(const struct coll *c, const void *base, size_t element)
{
    return (char *)(uintptr_t)base + element * type_size(c->type);
}

/* Blocks that differ: one operation per rank, in one group. */
static int start_uneven(struct ddp_group *g, struct nccl *n, struct coll *c)
{
    int type = their_types[c->type], rc = 0, me = g->layout.rank;
    for (int r = 0; r < g->layout.size && rc == 0; r++) {
        struct range b = coll_block(c, r);
        if (b.n > 0 && c->kind == COLL_ALL_GATHER)
            rc = nccl.broadcast(r == me ? c->send : at(c, c->recv, b.at),
                                at(c, c->recv, b.at), b.n, type, r, n->comm, n->stream);
        else if (b.n > 0)
            rc = nccl.reduce(at(c, c->send, b.at), r == me ? c->recv : NULL, b.n, type,
                             their_ops[c->op], r, n->comm, n->stream);
    }
    return rc;
}

static int send_block(struct nccl *n, const struct coll *c, struct range b, int peer)
{
    return b.n == 0 ? 0
                    : nccl.send(at(c, c->send, b.at), b.n * type_size(c->type), BYTES,
                                peer, n->comm, n->stream);
}

static int recv_block(struct nccl *n, const struct coll *c, struct range b, int peer)
{
    return b.n == 0 ? 0
                    : nccl.recv(at(c, c->recv, b.at), b.n * type_size(c->type), BYTES,
                                peer, n->comm, n->stream);
}

static int start_moves(struct ddp_group *g, struct nccl *n, struct coll *c)
{
    struct coll in = *c; /* whose blocks are those that come */
    struct range all = {0, c->count};
    bool root = g->layout.rank == c->root;
    int rc = 0;
    in.starts = c->starts_in ? c->starts_in : c->starts;
    for (int r = 0; r < g->layout.size && rc == 0; r++) {
        bool out = c->kind == COLL_ALL_TO_ALL || (c->kind == COLL_SCATTER && root) ||
                   (c->kind == COLL_GATHER && r == c->root);
        bool come = c->kind == COLL_ALL_TO_ALL || (c->kind == COLL_GATHER && root) ||
                    (c->kind == COLL_SCATTER && r == c->root);
        if (out)
            rc = send_block(n, c, c->kind == COLL_GATHER ? all : coll_block(c, r), r);
        if (come && rc == 0)
            rc = recv_block(n, c, c->kind == COLL_SCATTER ? all : coll_block(&in, r), r);
    }
    return rc;
}

static int start_one(struct ddp_group *g, struct nccl *n, struct coll *c)
{
    int type = their_types[c->type], op = their_ops[c->op];
    switch (c->kind) {
    case COLL_BROADCAST:
        return nccl.broadcast(c->send, c->recv, c->count, type, c->root, n->comm,
                              n->stream);
    case COLL_ALL_REDUCE:
        return nccl.all_reduce(c->send, c->recv, c->count, type, op, n->comm, n->stream);
    case COLL_REDUCE:
        return nccl.reduce(c->send, c->recv, c->count, type, op, c->root, n->comm,
                           n->stream);
    case COLL_ALL_GATHER:
        if (!c->starts)
            return nccl.all_gather(c->send, c->recv, c->count, type, n->comm, n->stream);
        return start_uneven(g, n, c);
    case COLL_REDUCE_SCATTER:
        if (!c->starts)
            return nccl.reduce_scatter(c->send, c->recv, c->count, type, op, n->comm,
                                       n->stream);
        return start_uneven(g, n, c);
    case COLL_GATHER:
    case COLL_SCATTER:
    case COLL_ALL_TO_ALL:
        return start_moves(g, n, c);
    case COLL_BARRIER:
        break;
    }
    return 0;
}

static int start(struct ddp_group *g, struct nccl *n, struct coll *c, struct ddp_err *err)
{
    char name[64];
    int rc = nccl.begin();
    if (rc == 0)
        rc = start_one(g, n, c);
    int ended = nccl.end();
    if (check(rc ? rc : ended, coll_name(c, name, sizeof name), err) < 0)
        return -1;
    return cuda_event_record(n->of_coll, n->stream, err);
}

static int is_done(struct nccl *n, cuda_event e, struct ddp_err *err)
{
    int error = 0;
    int rc = cuda_event_done(e, err);
    if (rc == 0 && nccl.async_error(n->comm, &error) == 0)
        rc = check(error, "NCCL", err);
    return rc;
}

static int nccl_advance(struct ddp_group *g, struct coll *c, int *culprit,
                        struct ddp_err *err)
{
    struct nccl *n = g->foreign;
    *culprit = -1;
    if (c->state == COLL_NEW) {
        if (start(g, n, c, err) < 0)
            return ADVANCE_ERROR;
        c->state = COLL_WORKS;
    }
    int rc = is_done(n, n->of_coll, err);
    return rc < 0 ? ADVANCE_ERROR : rc == 0 ? ADVANCE_LATER : ADVANCE_DONE;
}

/* ---- messages ---- */

static void nccl_post(struct ddp_group *g, struct ddp_request *r)
{
    struct nccl *n = g->foreign;
    g->npending++;
    row_append(&n->waiting, r);
}

static int hand_over(struct nccl *n, struct ddp_err *err)
{
    int rc = nccl.begin();
    for (struct ddp_request *r = n->waiting.first; r && rc == 0; r = r->next) {
        if (r->bytes > 0 && r->kind == REQUEST_SEND)
            rc = nccl.send(r->data, r->bytes, BYTES, r->peer, n->comm, n->stream);
        else if (r->bytes > 0)
            rc = nccl.recv(r->data, r->bytes, BYTES, r->peer, n->comm, n->stream);
    }
    int ended = nccl.end();
    if (check(rc ? rc : ended, "a message", err) < 0)
        return -1;
    n->batch = n->waiting;
    n->waiting = (struct row){NULL, NULL};
    return cuda_event_record(n->of_batch, n->stream, err);
}

static int nccl_progress(struct ddp_group *g, int *culprit, struct ddp_err *err)
{
    struct nccl *n = g->foreign;
    *culprit = -1;
    if (n->batch.first) {
        int rc = is_done(n, n->of_batch, err);
        if (rc <= 0)
            return rc;
        for (struct ddp_request *r = n->batch.first, *next; r; r = next) {
            next = r->next; /* whoever waits for it may take it away at once */
            r->ended = true;
            g->npending--;
        }
        n->batch = (struct row){NULL, NULL};
    }
    return n->waiting.first ? hand_over(n, err) : 0;
}

static bool nccl_cancel(struct ddp_group *g, struct ddp_request *r)
{
    struct nccl *n = g->foreign;
    bool off = row_remove(&n->waiting, r);
    g->npending -= off;
    return off;
}

/* Their data do not pass here, and the ends of those they are with would not show. */
static void nccl_watch(struct ddp_group *g)
{
    const struct nccl *n = g->foreign;
    const struct layout *l = &g->layout;
    for (const struct ddp_request *r = n ? n->batch.first : NULL; r; r = r->next) {
        if (l->members[r->peer].host != l->members[l->rank].host)
            net_watch(g->net, r->peer);
    }
}

const struct backend backend_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .advance = nccl_advance,
    .post = nccl_post,
    .progress = nccl_progress,
    .cancel = nccl_cancel,
    .watch = nccl_watch,
    .on_device = true,
    .sleepless = true,
};
