/* worker/group/coll.h - one collective under way
 *
 * A collective is described once and then advanced, by whichever call of the user comes
 * by, until it is done; nothing in here waits. Collectives of a group are advanced in the
 * order in which they were started, one at a time.
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

/* Stands where a kind does, but is none: messages by which a group is made. */
enum { COLL_BOOTSTRAP = 15 };

enum coll_state { COLL_NEW, COLL_ANNOUNCED, COLL_WORKS, COLL_WAITS };

/* What `advance` functions return. */
enum { ADVANCE_ERROR = -1, ADVANCE_LATER = 0, ADVANCE_DONE = 1 };

struct coll;
/* What a rank gives to step t of a collective, and its share in it. */
typedef void (*coll_work_fn)(struct shm *s, struct coll *c, unsigned t);

struct coll {
    /* the request; buffers are borrowed from the user. all_reduce and broadcast are in
     * place: send == recv */
    enum coll_kind kind;
    const void *send;
    void *recv;
    size_t count;      /* elements of a block, or of the whole where there are none */
    size_t *starts;    /* owned, or NULL: where the blocks begin that differ, size + 1 */
    size_t *starts_in; /* likewise: all_to_all, in recv */
    enum ddp_type type;
    enum ddp_op op;
    int root;      /* global rank */
    bool internal; /* our own, in host memory whatever the backend */
    uint64_t number;

    /* within a host */
    enum coll_state state;
    coll_work_fn give, work;
    unsigned t, nsteps;
    size_t chunk; /* elements per step */

    /* between hosts */
    bool on_tcp;   /* the host's operation is under way: hier.h */
    char *scratch; /* owned */

    /* by messages */
    struct ddp_request *items; /* owned */
    size_t nitems, nended;     /* the first `nended` are known to have ended */
};

struct range {
    size_t at, n; /* elements */
};

/* "all_reduce #17" */
const char *coll_name(const struct coll *c, char *text, size_t size);
/* Bytes of `count` elements. */
size_t coll_bytes(const struct coll *c);
/* Does it reduce, has it a root, is it made of messages? */
bool coll_reduces(enum coll_kind kind);
bool coll_has_root(enum coll_kind kind);
bool coll_by_messages(enum coll_kind kind);
/* Blocks that differ: `counts` of them. */
size_t *coll_starts(const size_t *counts, int n);
/* Elements of the largest block. */
size_t coll_most(const struct coll *c, int n);
/* Block i, and its k-th chunk; empty behind the end. */
struct range coll_block(const struct coll *c, int i);
struct range coll_part(const struct coll *c, int i, size_t k);
/* Bytes that must be the same on all of `size` ranks: of all blocks together; 0 where
 * ranks may differ. */
uint64_t coll_agreed(const struct coll *c, int size);
/* Kind, type, operation and root in one word, and that word and the bytes as a text. */
uint32_t coll_what(const struct coll *c);
void coll_describe(uint32_t what, uint64_t bytes, char *text, size_t size);
struct call coll_call(const struct coll *c, int size);
bool coll_same(const struct call *a, const struct call *b);
/* Two ranks call different things: the same words, whichever of them says it. Returns -1.
 */
int coll_disagree(int rank, const struct call *mine, int other, const struct call *theirs,
                  struct ddp_err *err);
void coll_finish(
    struct coll *c); /* frees what it owns; when it has ended, or never will */

/* Through the memory of this host, all ranks of the group being on it. */
int shm_coll_advance(struct shm *s, struct coll *c, struct ddp_err *err);

/* The k-th chunk; empty behind the end. */
struct range coll_chunk(const struct coll *c, size_t k);
/* Slice i of n, in whole cache lines so that no two ranks write to the same one. */
struct range range_slice(struct range r, enum ddp_type type, int i, int n);
/* The buffer of a local rank that has it in the arena, else NULL; while all of this host
 * are in the collective. */
char *shm_coll_direct(const struct shm *s, int local);
bool shm_coll_all_direct(const struct shm *s);
void shm_coll_announce(struct shm *s, struct coll *c, size_t nsmall);

/* Do the ranks of this host, all of which have announced, mean the same? */
int shm_coll_check(const struct shm *s, const struct coll *c, struct ddp_err *err);
/* The local ranks that `c` waits for have it reached; asked by whoever is about to sleep
 * or to blame somebody. */
bool shm_coll_reached(const struct shm *s, const struct coll *c, int local);

#endif
