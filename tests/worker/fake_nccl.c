/* tests/worker/fake_nccl.c - a libnccl that reduces through shared memory
 *
 * Between groupStart and groupEnd operations are noted; at the end all of them run: first
 * every rank shows what it gives, then everybody takes what it wants, then all meet. It
 * is an NCCL in what is called and what comes out, and in that ranks that do not call the
 * same wait (here: ten seconds, then an error). The rank in FAKE_NCCL_DEAF never comes
 * out of ncclCommInitRank. */
#include "worker/group/reduce.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define FAKE __attribute__((visibility("default")))

enum { RANKS = 8, NOTES = 64, ROOM = 4 << 20, SYSTEM_ERROR = 2, INVALID = 4 };
enum kind { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

struct nccl_id {
    char bytes[128];
};

struct note {
    enum kind kind;
    const void *in;
    void *out;
    size_t count;
    int type, op, peer; /* or root */
    size_t shown_at;    /* where in my room */
    bool taken;
};

struct shared {
    _Atomic int came, left;
    _Atomic unsigned turn;
    _Atomic int in_turn;
    struct {
        int n;
        struct note notes[NOTES];
    } list[RANKS];
    char room[RANKS][ROOM];
};

struct comm {
    struct shared *all;
    int rank, size;
};

static struct comm *current;
static struct note notes[NOTES];
static int nnotes, depth;

static const struct {
    int theirs;
    enum ddp_type ours;
} types[] = {{0, DDP_I8},  {1, DDP_U8},  {2, DDP_I32}, {4, DDP_I64},
             {6, DDP_F16}, {7, DDP_F32}, {8, DDP_F64}, {9, DDP_BF16}};
static const enum ddp_op ops[] = {DDP_SUM, DDP_PRODUCT, DDP_MAX, DDP_MIN, DDP_AVG};

static enum ddp_type type_of(int theirs)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].theirs == theirs)
            return types[i].ours;
    }
    abort();
}

static int meet(struct comm *c)
{
    unsigned turn = atomic_load(&c->all->turn);
    if (atomic_fetch_add(&c->all->in_turn, 1) == c->size - 1) {
        atomic_store(&c->all->in_turn, 0);
        atomic_fetch_add(&c->all->turn, 1);
        return 0;
    }
    for (int i = 0; i < 200000; i++) {
        if (atomic_load(&c->all->turn) != turn)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return SYSTEM_ERROR;
}

/* ---- one group of operations ---- */

static size_t given(const struct comm *c, const struct note *n)
{
    size_t one = n->count * type_size(type_of(n->type));
    if (n->kind == RECV || (n->kind == BROADCAST && n->peer != c->rank))
        return 0;
    return n->kind == REDUCE_SCATTER ? one * (size_t)c->size : one;
}

static int show(struct comm *c)
{
    size_t at = 0;
    c->all->list[c->rank].n = nnotes;
    for (int i = 0; i < nnotes; i++) {
        size_t bytes = given(c, &notes[i]);
        if (at + bytes > ROOM)
            return INVALID;
        notes[i].shown_at = at;
        if (bytes > 0)
            memcpy(c->all->room[c->rank] + at, notes[i].in, bytes);
        at += (bytes + 63) / 64 * 64;
    }
    memcpy(c->all->list[c->rank].notes, notes, sizeof notes);
    return 0;
}

static const char *shown(const struct comm *c, int rank, int i)
{
    return c->all->room[rank] + c->all->list[rank].notes[i].shown_at;
}

static int receive(struct comm *c, const struct note *n)
{
    int theirs = c->all->list[n->peer].n;
    for (int i = 0; i < theirs; i++) {
        struct note *o = &c->all->list[n->peer].notes[i];
        if (o->kind != SEND || o->peer != c->rank || o->taken)
            continue;
        o->taken = true;
        if (o->count != n->count)
            return INVALID;
        memcpy(n->out, shown(c, n->peer, i), n->count);
        return 0;
    }
    return INVALID;
}

static int take(struct comm *c, int i)
{
    const struct note *n = &notes[i];
    enum ddp_type type = type_of(n->type);
    size_t one = n->count * type_size(type);
    const void *in[RANKS];
    void *out = n->out;
    size_t skip = n->kind == REDUCE_SCATTER ? one * (size_t)c->rank : 0;
    if (n->kind == SEND)
        return 0;
    if (n->kind == RECV)
        return receive(c, n);
    for (int r = 0; r < c->size; r++) {
        if (c->all->list[r].n <= i || c->all->list[r].notes[i].kind != n->kind)
            return INVALID;
        in[r] = shown(c, r, i) + skip;
    }
    if (n->kind == BROADCAST) {
        memcpy(out, in[n->peer], one);
    } else if (n->kind == ALL_GATHER) {
        for (int r = 0; r < c->size; r++)
            memcpy((char *)out + (size_t)r * one, in[r], one);
    } else if (n->kind != REDUCE || n->peer == c->rank) {
        reduce_many(&out, 1, in, c->size, n->count, type, ops[n->op], c->size);
    }
    return 0;
}

FAKE int ncclGroupStart(void);
FAKE int ncclGroupEnd(void);

int ncclGroupStart(void)
{
    depth++;
    return 0;
}

int ncclGroupEnd(void)
{
    if (--depth > 0 || nnotes == 0)
        return 0;
    struct comm *c = current;
    int rc = show(c), met = meet(c);
    for (int i = 0; i < nnotes && rc == 0 && met == 0; i++)
        rc = take(c, i);
    nnotes = 0;
    met = met ? met : meet(c);
    return rc ? rc : met;
}

static int add(struct comm *c, struct note n)
{
    if (nnotes == NOTES)
        return INVALID;
    ncclGroupStart();
    current = c;
    notes[nnotes++] = n;
    return ncclGroupEnd();
}

/* ---- the calls ---- */

FAKE int ncclGetUniqueId(struct nccl_id *id);
FAKE int ncclCommInitRank(struct comm **comm, int size, struct nccl_id id, int rank);
FAKE int ncclCommDestroy(struct comm *c);
FAKE int ncclCommAbort(struct comm *c);
FAKE int ncclCommGetAsyncError(struct comm *c, int *error);
FAKE const char *ncclGetErrorString(int error);
FAKE int ncclAllReduce(const void *in, void *out, size_t n, int type, int op,
                       struct comm *c, void *s);
FAKE int ncclBroadcast(const void *in, void *out, size_t n, int type, int root,
                       struct comm *c, void *s);
FAKE int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root,
                    struct comm *c, void *s);
FAKE int ncclAllGather(const void *in, void *out, size_t n, int type, struct comm *c,
                       void *s);
FAKE int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op,
                           struct comm *c, void *s);
FAKE int ncclSend(const void *in, size_t n, int type, int peer, struct comm *c, void *s);
FAKE int ncclRecv(void *out, size_t n, int type, int peer, struct comm *c, void *s);

int ncclGetUniqueId(struct nccl_id *id)
{
    unsigned long long number;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return SYSTEM_ERROR;
    snprintf(id->bytes, sizeof id->bytes, "/ddp-fake-nccl-%llx", number);
    return 0;
}

int ncclCommInitRank(struct comm **comm, int size, struct nccl_id id, int rank)
{
    int fd = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared)) < 0)
        return SYSTEM_ERROR;
    struct comm *c = calloc(1, sizeof *c);
    c->rank = rank;
    c->size = size;
    c->all = mmap(NULL, sizeof *c->all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    *comm = c;
    if (atomic_fetch_add(&c->all->came, 1) == size - 1)
        shm_unlink(id.bytes); /* all have it */
    const char *deaf = getenv("FAKE_NCCL_DEAF");
    while (deaf && atoi(deaf) == rank)
        pause(); /* one that never comes to meet the others */
    return meet(c);
}

int ncclCommDestroy(struct comm *c)
{
    munmap(c->all, sizeof *c->all);
    free(c);
    return 0;
}

int ncclCommAbort(struct comm *c)
{
    return ncclCommDestroy(c);
}

int ncclCommGetAsyncError(struct comm *c, int *error)
{
    *error = 0;
    return 0;
}

const char *ncclGetErrorString(int error)
{
    return error == INVALID ? "invalid argument" : "system error";
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, struct comm *c,
                  void *s)
{
    return add(c, (struct note){ALL_REDUCE, in, out, n, type, op, 0, 0, 0});
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, struct comm *c,
                  void *s)
{
    return add(c, (struct note){BROADCAST, in, out, n, type, 0, root, 0, 0});
}

int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root,
               struct comm *c, void *s)
{
    return add(c, (struct note){REDUCE, in, out, n, type, op, root, 0, 0});
}

int ncclAllGather(const void *in, void *out, size_t n, int type, struct comm *c, void *s)
{
    return add(c, (struct note){ALL_GATHER, in, out, n, type, 0, 0, 0, 0});
}

int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op,
                      struct comm *c, void *s)
{
    return add(c, (struct note){REDUCE_SCATTER, in, out, n, type, op, 0, 0, 0});
}

int ncclSend(const void *in, size_t n, int type, int peer, struct comm *c, void *s)
{
    return add(c, (struct note){SEND, in, NULL, n, type, 0, peer, 0, 0});
}

int ncclRecv(void *out, size_t n, int type, int peer, struct comm *c, void *s)
{
    return add(c, (struct note){RECV, NULL, out, n, type, 0, peer, 0, 0});
}
