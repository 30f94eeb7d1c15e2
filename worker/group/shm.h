/* worker/group/shm.h - the memory that the ranks of one host share
 *
 * One anonymous memory file (memfd) per group and host, made by the host's first rank and
 * handed to the others over a unix socket: nothing has a name in a file system, so
 * nothing is left behind however the ranks end. In it: a control block per rank, small
 * data next to the word that announces them, staging room for data that live elsewhere,
 * byte rings for messages, and each rank's arena. Untouched parts cost no memory.
 *
 * Ranks tell each other about progress by two words each: `post[op & 1].seq`, "I have
 * entered collective number seq, with these arguments", and `step`, a count that goes on
 * within long collectives. Whoever waits spins for a while and then sleeps on its own
 * `asleep` word, which the rank that it waits for clears.
 *
 * Each rank holds a POSIX record lock on its own byte of the file for as long as it
 * lives; the kernel lets go of it when the process ends in whatever way, and forked
 * children do not inherit it. A sleeper looks at the lock of whom it waits for.
 */
#ifndef WORKER_GROUP_SHM_H
#define WORKER_GROUP_SHM_H

#include "worker/group/layout.h"
#include "worker/group/ring.h"
#include "worker/group/autotune.h"

#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    SHM_EAGER = 8192,    /* bytes of a small collective per rank */
    SHM_INLINE = 40,     /* of these, in the announcing cache line itself */
    SHM_CHUNK = 4 << 20, /* bytes of a staged collective per rank and step, at most */
    SHM_STAGES = 4,      /* chunks under way at once */
    SHM_LINE = 64,
    SHM_WORDS = 64,         /* of what a rank has called last, for failure_watch.h */
    SHM_CPUS = CPU_SETSIZE, /* CPU numbers looked at to find whether ranks share CPUs */
};

/* "I am in collective number seq." Written before seq, read after it. */
struct shm_post {
    _Atomic uint32_t seq;
    uint32_t what;  /* kind, type, operation and root, packed: the same on every rank */
    uint64_t bytes; /* likewise */
    int64_t where;  /* offset of the buffer in the segment, -1 when it is outside */
    char data[SHM_INLINE];
};

/* What a rank calls whose data go another way (failure_watch.h): it may be overwritten while it
 * is read, and counts when its number, written last, is the same before and after. */
struct shm_word {
    _Atomic uint64_t number, bytes;
    _Atomic uint32_t what;
};

struct shm_rank {
    alignas(SHM_LINE) struct shm_post post[2];
    alignas(SHM_LINE) _Atomic uint32_t step;
    /* 0, or 1 + local rank that is waited for, or SHM_ANY; a futex */
    alignas(SHM_LINE) _Atomic uint32_t asleep;
    alignas(SHM_LINE) _Atomic uint32_t left; /* has taken its leave in order */
    bool unheard;                            /* its kernel has no barrier for others */
    uint64_t process;                        /* tells processes apart */
    unsigned char cpus[SHM_CPUS / 8];
    alignas(SHM_LINE) char eager[2][SHM_EAGER];
    alignas(SHM_LINE) struct shm_word words[SHM_WORDS]; /* by number */
    int32_t culprit; /* why it failed: read when it was the first. Global rank, or -1 */
    char why[512];
};

enum { SHM_ANY = 0xffff };

struct shm_head {
    char magic[8];
    uint64_t bytes, arena_bytes;
    int32_t nlocal;
    _Atomic uint32_t failed; /* 0, or 1 + the local rank that failed first */
};

struct shm {
    int me, n;                   /* local rank, number of local ranks */
    const struct layout *layout; /* borrowed from the group */
    const int *ranks;            /* borrowed from the layout: local to global */
    int fd;                      /* owned: carries the record lock */
    char *base;                  /* owned mapping */
    size_t bytes;
    struct shm_head *head; /* these point into the mapping */
    struct shm_rank *rank; /* [n] */
    char *staging;         /* [n][SHM_STAGES][SHM_CHUNK] */
    struct ring *rings;    /* [from][to] */
    char *arena;           /* mine */
    size_t arena_bytes, arena_used;
    ptrdiff_t arena_stride; /* from one rank's to the next's */
    uint32_t seq; /* collectives entered; of the last one I have announced this: */
    uint32_t what;
    uint64_t agreed;
    uint32_t steps;  /* my step word, and everybody's when nothing is under way */
    const void **in; /* owned scratch, [n] */
    void **out;      /* owned scratch, [n] */
    bool barriers;   /* the kernel makes one of us wait for the others' stores */
    int arrived;     /* ranks below this are known to have what is waited for */
    int64_t spin_ns;
    uint64_t moves;      /* steps that I have made, and pieces of messages in or out */
    struct autotune showing; /* a result: at once, or in a copy of its own */
    struct autotune giving;  /* the same to the others' buffers in the arena */
};

struct shm *shm_join(const struct layout *layout, const struct listeners *listeners,
                     size_t arena_bytes, int64_t deadline_ms, struct ddp_err *err);
void shm_leave(struct shm *s); /* NULL is fine */

void *shm_arena_alloc(struct shm *s, size_t bytes, struct ddp_err *err);
/* What lies at the place of `mine` in a local rank's arena; NULL: `mine` is not in mine.
 */
void *shm_arena_of(const struct shm *s, const void *mine, int local);
/* Offset of [p, p + bytes) in the segment when it lies in my arena, else -1. */
int64_t shm_where(const struct shm *s, const void *p, size_t bytes);

static inline char *shm_stage(const struct shm *s, int local, unsigned stage)
{
    return s->staging +
           ((size_t)local * SHM_STAGES + stage % SHM_STAGES) * (size_t)SHM_CHUNK;
}

static inline struct ring *shm_ring(const struct shm *s, int from, int to)
{
    return &s->rings[(size_t)from * (size_t)s->n + (size_t)to];
}

/* Let the ranks that this one waits for be made to finish their stores: false where the
 * kernel cannot. */
bool shm_join_barriers(void);
/* Announce; wakes who sleeps for it. */
void shm_post(struct shm *s, uint32_t what, uint64_t bytes, int64_t where,
              const void *small, size_t nsmall);
void shm_step(struct shm *s);
void shm_wake(struct shm *s, int local); /* after writing to what `local` may wait for */

/* Has everybody entered my current collective, or come to my step? Otherwise the local
 * rank that lags is s->arrived. */
bool shm_all_posted(struct shm *s);
bool shm_all_stepped(struct shm *s);

/* Leave word of what I call, and read that of a local rank: which collective stands where
 * `number` belongs. Less: it has not come so far. More: it is far ahead, and what it
 * called is forgotten. */
void shm_leave_word(struct shm *s, uint64_t number, uint32_t what, uint64_t bytes);
uint64_t shm_word(const struct shm *s, int local, uint64_t number, uint32_t *what,
                  uint64_t *bytes);

/* One turn of waiting for `local` (or SHM_ANY): sleeps until woken or `ms` have passed,
 * unless `ready(arg)` says that there is something to do. */
void shm_sleep(struct shm *s, unsigned local, int ms, bool (*ready)(void *arg),
               void *arg);

/* The local rank that is gone without having said so, or that has left; -1: none. */
int shm_gone(const struct shm *s, bool *left);
bool shm_is_gone(const struct shm *s, int local, bool *left);

/* The first failure of any rank of this host is everybody's: after shm_fail(), whoever
 * was first, shm_failed() tells it. */
void shm_fail(struct shm *s, int culprit, const char *why);
bool shm_failed(const struct shm *s, int *culprit, struct ddp_err *err);

#endif
