/* worker/group/coll.h - a collective in flight
 *
 * A collective is described once and then advanced by the progress engine until it is
 * done; nothing here waits. Collectives of a group are advanced in the order they were
 * started, one at a time (NCCL: any number, nccl.c).
 */
#ifndef WORKER_GROUP_COLL_H
#define WORKER_GROUP_COLL_H

#include "include/ddprun/group.h"
#include "worker/group/shm.h"
#include "worker/group/tcp_coll.h"

enum coll_kind {
    COLL_BARRIER,
    COLL_BROADCAST,
    COLL_ALL_REDUCE,
    COLL_ALL_GATHER,
    COLL_REDUCE_SCATTER,
    COLL_REDUCE,
    COLL_GATHER,
    COLL_SCATTER,
    COLL_ALL_TO_ALL
};

/* Names of other calls: the library's own all_gather, and messages of a bootstrap. */
enum { COLL_SPLIT = COLL_ALL_TO_ALL + 1, COLL_BOOTSTRAP = 15 };

enum coll_state { COLL_NEW, COLL_ANNOUNCED, COLL_WORKS, COLL_WAITS };

/* What `advance` functions return. */
enum { ADVANCE_ERROR = -1, ADVANCE_LATER = 0, ADVANCE_DONE = 1 };

struct coll;
struct hier;
typedef void (*coll_step_fn)(struct hier *h, struct coll *c, unsigned t);

/* A step t: `give` copies data to where others of the host read them in this step or
 * later, before they are waited for; `begin` does this rank's share, and may start an
 * operation between hosts, after which `end` is called. NULL: nothing. */
struct coll_step {
    coll_step_fn give, begin, end;
};

struct coll {
    /* the request; buffers are borrowed from the user. all_reduce and broadcast are in
     * place: send == recv */
    enum coll_kind kind;
    const void *send;
    void *recv;
    size_t count;   /* elements of a block, or in all where there are no blocks */
    size_t *starts; /* owned, or NULL: offsets of blocks of different sizes, size + 1 */
    size_t *starts_in; /* likewise: all_to_all, in recv */
    enum ddp_type type;
    enum ddp_op op;
    int root;      /* global rank */
    bool internal; /* the library's own, in host memory whatever the backend */
    bool listless; /* a user's mistake: blocks of different sizes, and no list of them */
    uint64_t number;

    /* within a host */
    enum coll_state state;
    const struct coll_step *step;
    unsigned t, nsteps, nchunks;
    unsigned lead; /* channels work on chunk t - lead in step t */
    size_t chunk;  /* elements */

    /* between hosts */
    bool on_tcp;   /* the operation between hosts is in flight: hier.h */
    char *scratch; /* owned */

    /* by messages */
    struct ddp_request *items; /* owned */
    size_t nitems, nended;     /* the first `nended` have ended */
};

struct range {
    size_t at, n; /* elements */
};

/* "all_reduce #17" */
struct phrase coll_name(const struct coll *c);
/* Element `at` of a buffer, and a copy of n elements. */
char *coll_at(const struct coll *c, const void *base, size_t at);
void coll_copy(const struct coll *c, void *to, const void *from, size_t n);
/* Does it reduce, is it made of p2p messages? */
bool coll_reduces(enum coll_kind kind);
bool coll_by_messages(enum coll_kind kind);
/* Is it in host memory and never given to NCCL or MPI: a barrier, or the library's own?
 */
static inline bool coll_stays_ours(const struct coll *c)
{
    return c->internal || c->kind == COLL_BARRIER;
}
/* Offsets of blocks of these sizes. */
size_t *coll_starts(const size_t *counts, int n);
/* Elements of the largest block. */
size_t coll_most(const struct coll *c, int n);
/* Block i: among those at `starts`, or of one size, if that is NULL. */
static inline struct range coll_block_in(const struct coll *c, const size_t *starts,
                                         int i)
{
    return starts ? (struct range){starts[i], starts[i + 1] - starts[i]}
                  : (struct range){c->count * (size_t)i, c->count};
}
static inline struct range coll_block(const struct coll *c, int i)
{
    return coll_block_in(c, c->starts, i);
}
/* The k-th chunk of block i; empty beyond the end. */
struct range coll_part(const struct coll *c, int i, size_t k);
/* Elements behind the two pointers on rank `me`. */
size_t coll_sends(const struct coll *c, int me, int size);
size_t coll_receives(const struct coll *c, int me, int size);
/* gather, scatter and all_to_all: what `me` reads from `send` for `peer`, and what of
 * `recv` comes from it. False: nothing, and always for other kinds. */
bool coll_gives(const struct coll *c, int me, int peer, struct range *r);
bool coll_takes(const struct coll *c, int me, int peer, struct range *r);
/* Bytes that must agree on all of `size` ranks, of all blocks together; 0 where they
 * may differ. */
uint64_t coll_agreed(const struct coll *c, int size);
/* `bytes` of a struct call: coll_agreed(), and above it a hash of the blocks' sizes, so
 * that ranks with other lists of counts disagree. */
#define COLL_BYTES (UINT64_MAX >> 16)
/* Kind, type, operation and root in one word, and its text. */
uint32_t coll_what(const struct coll *c);
struct phrase coll_describe(uint32_t what, uint64_t bytes);
struct call coll_call(const struct coll *c, int size);
bool coll_same(const struct call *a, const struct call *b);
/* Sets the error for a mismatch; the text is the same on both ranks. Returns -1. */
int coll_disagree(int rank, const struct call *mine, int other, const struct call *theirs,
                  struct ddp_err *err);
void coll_finish(struct coll *c); /* when it has ended, or never will */

/* The k-th chunk; empty beyond the end. */
struct range coll_chunk(const struct coll *c, size_t k);
/* Slice i of n, in whole cache lines, so that no line has two writers. */
struct range range_slice(struct range r, enum ddp_type type, int i, int n);
/* A local rank's buffer when it is in the arena, else NULL; valid while all ranks of
 * the host are in the collective. */
char *shm_coll_direct(const struct shm *s, int local);
/* Element `at`, of chunk k, in a local rank's staging buffer. */
char *shm_coll_staged(const struct shm *s, const struct coll *c, int local, unsigned k,
                      size_t at);
/* The same, or in its buffer when that is in the arena. */
char *shm_coll_given(const struct shm *s, const struct coll *c, int local, unsigned k,
                     size_t at);
/* Announce the call; `with_data`: with the data, if they are short. ADVANCE_DONE when all
 * ranks of this host have announced the same one; s may be NULL. */
int shm_coll_meet(struct shm *s, struct coll *c, bool with_data, struct ddp_err *err);
/* Has this local rank reached what `c` waits for? */
bool shm_coll_reached(const struct shm *s, const struct coll *c, int local);

#endif
