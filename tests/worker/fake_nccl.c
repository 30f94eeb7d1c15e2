/* tests/worker/fake_nccl.c - a libnccl that reduces through shared memory
 *
 * Operations between groupStart and groupEnd are collected, and put into the stream at
 * the end. There each rank publishes its data, then each reads what it needs, then all
 * synchronise; a group of messages alone is exchanged pair by pair. Like NCCL it waits
 * until it is aborted when ranks call different things, and does not compare
 * operations.
 *
 * Faults: the rank in FAKE_NCCL_DEAF never returns from ncclCommInitRank;
 * FAKE_NCCL_LATE_MS delays it.
 * FAKE_NCCL_DIES=n kills the process at its n-th event: each group is one when it is
 * submitted and one when its data are published. FAKE_NCCL_FAILS=n returns an error
 * there. With FAKE_NCCL_ABORT_HANGS ncclCommAbort() never returns.
 */
#include "worker/group/reduce.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 8, NOTES = 64, ROOM = 4 << 20, LETTER = 65536 };
enum { SYSTEM_ERROR = 2, INVALID = 4 };
enum { YOUNG_S = 60 };

#define FOLDER "/dev/shm"
#define NAME   "ddp-fake-nccl-"

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
    size_t shown_at;    /* offset in this rank's area */
    bool done;
};

/* A message in flight. */
struct letter {
    _Atomic size_t bytes; /* 1 + so many; 0: none */
    char data[LETTER];
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
    struct letter letters[RANKS][RANKS];
};

struct comm {
    struct shared *all;
    int fd; /* of that; locked while we live */
    int rank, size;
    _Atomic int busy, aborted, error; /* groups in the stream */
    struct comm *next;
};

/* The operations of one group. */
struct batch {
    struct comm *comm;
    int n;
    struct note notes[NOTES];
};

static struct comm *_Atomic all_comms;     /* never freed: a stream may still use it */
static _Thread_local struct comm *current; /* groups are per thread */
static _Thread_local void *current_stream;
static _Thread_local struct note notes[NOTES];
static _Thread_local int nnotes, depth;
static _Atomic int things;

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

static int another_thing(void)
{
    const char *dies = getenv("FAKE_NCCL_DIES"), *fails = getenv("FAKE_NCCL_FAILS");
    int number = atomic_fetch_add(&things, 1) + 1;
    if (dies && atoi(dies) == number)
        raise(SIGKILL);
    return fails && atoi(fails) == number ? SYSTEM_ERROR : 0;
}

/* Wait for all ranks, or an abort. */
static int meet(struct comm *c)
{
    unsigned turn = atomic_load(&c->all->turn);
    if (atomic_fetch_add(&c->all->in_turn, 1) == c->size - 1) {
        atomic_store(&c->all->in_turn, 0);
        atomic_fetch_add(&c->all->turn, 1);
        return 0;
    }
    while (atomic_load(&c->all->turn) == turn) {
        if (atomic_load(&c->aborted))
            return SYSTEM_ERROR;
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return 0;
}

static int wait_for_ever(struct comm *c)
{
    while (!atomic_load(&c->aborted))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return SYSTEM_ERROR;
}

/* ---- one group of operations ---- */

static size_t given(const struct comm *c, const struct note *n)
{
    size_t one = n->count * type_size(type_of(n->type));
    if (n->kind == BROADCAST && n->peer != c->rank)
        return 0;
    return n->kind == REDUCE_SCATTER ? one * (size_t)c->size : one;
}

static int show(struct batch *b)
{
    struct comm *c = b->comm;
    size_t at = 0;
    c->all->list[c->rank].n = b->n;
    for (int i = 0; i < b->n; i++) {
        size_t bytes = given(c, &b->notes[i]);
        if (at + bytes > ROOM)
            return INVALID;
        b->notes[i].shown_at = at;
        if (bytes > 0)
            memcpy(c->all->room[c->rank] + at, b->notes[i].in, bytes);
        at += (bytes + 63) / 64 * 64;
    }
    memcpy(c->all->list[c->rank].notes, b->notes, sizeof b->notes);
    return 0;
}

static const char *shown(const struct comm *c, int rank, int i)
{
    return c->all->room[rank] + c->all->list[rank].notes[i].shown_at;
}

/* Does nothing while the other side is not ready. */
static int try_letter(struct comm *c, struct note *n)
{
    bool out = n->kind == SEND;
    struct letter *l =
        out ? &c->all->letters[c->rank][n->peer] : &c->all->letters[n->peer][c->rank];
    size_t there = atomic_load(&l->bytes);
    if (n->count > LETTER)
        return INVALID;
    if (out ? there != 0 : there != 1 + n->count)
        return 0;
    if (out)
        memcpy(l->data, n->in, n->count);
    else
        memcpy(n->out, l->data, n->count);
    atomic_store(&l->bytes, out ? 1 + n->count : 0);
    n->done = true;
    return 0;
}

/* In order for each pair. */
static int exchange(struct batch *b)
{
    for (int left = b->n; left > 0;) {
        left = 0;
        for (int i = 0; i < b->n; i++) {
            struct note *n = &b->notes[i];
            bool first = !n->done;
            for (int k = 0; k < i && first; k++)
                first = b->notes[k].done || b->notes[k].kind != n->kind ||
                        b->notes[k].peer != n->peer;
            int rc = first ? try_letter(b->comm, n) : 0;
            if (rc != 0)
                return rc;
            left += !n->done;
        }
        if (left > 0 && atomic_load(&b->comm->aborted))
            return SYSTEM_ERROR;
        if (left > 0)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return 0;
}

static bool only_messages(const struct batch *b)
{
    for (int i = 0; i < b->n; i++) {
        if (b->notes[i].kind != SEND && b->notes[i].kind != RECV)
            return false;
    }
    return true;
}

static int take(struct batch *b, int i)
{
    struct comm *c = b->comm;
    const struct note *n = &b->notes[i];
    enum ddp_type type = type_of(n->type);
    size_t one = n->count * type_size(type);
    const void *in[RANKS];
    void *out = n->out;
    size_t skip = n->kind == REDUCE_SCATTER ? one * (size_t)c->rank : 0;
    for (int r = 0; r < c->size; r++) {
        const struct note *o = &c->all->list[r].notes[i];
        if (c->all->list[r].n <= i || o->kind != n->kind || o->peer != n->peer ||
            o->count != n->count)
            return wait_for_ever(c);
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

static int collect(struct batch *b)
{
    int rc = show(b);
    if (rc == 0)
        rc = another_thing();
    if (rc == 0)
        rc = meet(b->comm);
    for (int i = 0; i < b->n && rc == 0; i++)
        rc = take(b, i);
    return rc ? rc : meet(b->comm);
}

static void run(void *arg)
{
    struct batch *b = arg;
    struct comm *c = b->comm;
    int rc = only_messages(b) ? another_thing() : collect(b);
    if (rc == 0 && only_messages(b))
        rc = exchange(b);
    if (rc)
        atomic_store(&c->error, rc);
    atomic_fetch_sub(&c->busy, 1);
    free(b);
    if (rc)
        wait_for_ever(c); /* a kernel that has failed does not end */
}

int ncclGroupStart(void)
{
    depth++;
    return 0;
}

int ncclGroupEnd(void)
{
    void (*give)(void *stream, void (*task)(void *), void *arg) = NULL;
    if (--depth > 0 || nnotes == 0)
        return 0;
    int rc = another_thing();
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&give = cuda ? dlsym(cuda, "fake_cuda_run") : NULL;
    if (rc == 0 && give) {
        struct batch *b = calloc(1, sizeof *b);
        b->comm = current;
        b->n = nnotes;
        memcpy(b->notes, notes, sizeof notes);
        atomic_fetch_add(&current->busy, 1);
        give(current_stream, run, b);
    }
    nnotes = 0;
    return give ? rc : SYSTEM_ERROR;
}

static int add(struct comm *c, void *stream, struct note n)
{
    if (nnotes == NOTES)
        return INVALID;
    ncclGroupStart();
    current = c;
    current_stream = stream;
    notes[nnotes++] = n;
    return ncclGroupEnd();
}

/* ---- the calls ---- */

int ncclGetVersion(int *version)
{
    *version = 22809;
    return 0;
}

/* Segments of ranks that were killed before all had come. A new one may not be locked
 * yet. */
static void sweep(void)
{
    DIR *dir = opendir(FOLDER);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct stat st;
        if (strncmp(e->d_name, NAME, sizeof NAME - 1) != 0)
            continue;
        int fd = openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0 && time(NULL) - st.st_mtime > YOUNG_S &&
            flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(dir), e->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
}

int ncclGetUniqueId(struct nccl_id *id)
{
    unsigned long long number;
    sweep();
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        return SYSTEM_ERROR;
    snprintf(id->bytes, sizeof id->bytes, "/" NAME "%llx", number);
    return 0;
}

int ncclCommInitRank(struct comm **comm, int size, struct nccl_id id, int rank)
{
    int fd = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || flock(fd, LOCK_SH) < 0 || ftruncate(fd, sizeof(struct shared)) < 0)
        return SYSTEM_ERROR;
    struct comm *c = calloc(1, sizeof *c);
    c->fd = fd;
    c->rank = rank;
    c->size = size;
    c->next = atomic_exchange(&all_comms, c);
    c->all = mmap(NULL, sizeof *c->all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *comm = c;
    if (atomic_fetch_add(&c->all->came, 1) == size - 1)
        shm_unlink(id.bytes); /* all ranks have mapped it */
    const char *deaf = getenv("FAKE_NCCL_DEAF"), *late = getenv("FAKE_NCCL_LATE_MS");
    usleep(late ? (useconds_t)atoi(late) * 1000 : 0);
    while (deaf && atoi(deaf) == rank)
        pause(); /* never returns */
    return meet(c);
}

int ncclCommDestroy(struct comm *c)
{
    while (atomic_load(&c->busy))
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    munmap(c->all, sizeof *c->all);
    close(c->fd);
    return 0;
}

int ncclCommAbort(struct comm *c)
{
    while (getenv("FAKE_NCCL_ABORT_HANGS"))
        pause();
    atomic_store(&c->aborted, 1);
    return ncclCommDestroy(c);
}

int ncclCommGetAsyncError(struct comm *c, int *error)
{
    *error = atomic_load(&c->error);
    return 0;
}

const char *ncclGetErrorString(int error)
{
    return error == INVALID ? "invalid argument" : "system error";
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, struct comm *c,
                  void *s)
{
    return add(c, s, (struct note){ALL_REDUCE, in, out, n, type, op, 0, 0, 0});
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, struct comm *c,
                  void *s)
{
    return add(c, s, (struct note){BROADCAST, in, out, n, type, 0, root, 0, 0});
}

int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root,
               struct comm *c, void *s)
{
    return add(c, s, (struct note){REDUCE, in, out, n, type, op, root, 0, 0});
}

int ncclAllGather(const void *in, void *out, size_t n, int type, struct comm *c, void *s)
{
    return add(c, s, (struct note){ALL_GATHER, in, out, n, type, 0, 0, 0, 0});
}

int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op,
                      struct comm *c, void *s)
{
    return add(c, s, (struct note){REDUCE_SCATTER, in, out, n, type, op, 0, 0, 0});
}

int ncclSend(const void *in, size_t n, int type, int peer, struct comm *c, void *s)
{
    return add(c, s, (struct note){SEND, in, NULL, n, type, 0, peer, 0, 0});
}

int ncclRecv(void *out, size_t n, int type, int peer, struct comm *c, void *s)
{
    return add(c, s, (struct note){RECV, NULL, out, n, type, 0, peer, 0, 0});
}
