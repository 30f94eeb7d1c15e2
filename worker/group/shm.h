/* worker/group/shm.h - the shared memory of the ranks of one host
 *
 * One anonymous memory file (memfd) per group and host, created by the host's first
 * rank and passed to the others over a unix socket: it has no name in a file system, so
 * nothing is left behind however the ranks end. It has a control block per rank, small
 * data next to the word that announces them, staging buffers for private data, rings
 * for messages, and each rank's arena. Untouched parts cost no memory.
 *
 * Ranks signal progress by two words each: `post[op & 1].seq` ("entered collective
 * number seq, with these arguments") and `step`, a counter within long collectives. A
 * waiting rank spins for a while and then sleeps on its own `asleep` word, which the
 * rank it waits for clears.
 *
 * Each rank holds a POSIX record lock on its own byte of the file; the kernel releases
 * it when the process ends for whatever reason, and forked children do not inherit it.
 * A sleeper checks the lock of the rank it waits for.
 */
#ifndef WORKER_GROUP_SHM_H
#define WORKER_GROUP_SHM_H

#include "common/affinity.h"
#include "worker/group/call.h"
#include "worker/group/layout.h"
#include "worker/group/ring.h"

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
    SHM_WORDS = 64, /* latest calls per rank, for failure_watch.c */
};

/* "I am in collective number seq." Written before seq, read after it. */
struct shm_post {
    _Atomic uint32_t seq;
    uint32_t what;  /* kind, type, operation and root, packed: the same on every rank */
    uint64_t bytes; /* likewise */
    int64_t where;  /* offset of the buffer in the segment, -1 when it is outside */
    char data[SHM_INLINE];
};

/* A call whose data another library moves (failure_watch.c). It may be overwritten
 * while it is read: it is valid when its number, written last, is the same before and
 * after. */
struct shm_call {
    _Atomic uint64_t number, bytes;
    _Atomic uint32_t what;
};

struct shm_rank {
    alignas(SHM_LINE) struct shm_post post[2];
    alignas(SHM_LINE) _Atomic uint32_t step;
    /* 0, or 1 + local rank that is waited for, or SHM_ANY; a futex */
    alignas(SHM_LINE) _Atomic uint32_t asleep;
    alignas(SHM_LINE) _Atomic uint32_t left; /* has left without an error */
    bool unheard;                            /* its kernel has no membarrier() */
    bool shares_cpu;  /* belongs to a group with more ranks here than CPUs */
    uint64_t process; /* tells processes apart */
    struct affinity cpus;
    alignas(SHM_LINE) char eager[2][SHM_EAGER];
    alignas(SHM_LINE) struct shm_call words[SHM_WORDS]; /* by number */
    int32_t culprit; /* why it failed; valid if it failed first. Global rank, or -1 */
    char why[512];
};

enum { SHM_ANY = 0xffff };

struct shm_head {
    char magic[8];
    uint64_t bytes, arena_bytes;
    int32_t nlocal;
    _Atomic uint32_t failed; /* 0, or 1 + the local rank that failed first */
};

/* The choice between two implementations: autotune.c. */
struct autotune {
    unsigned turns;
    int way;        /* of this call */
    int64_t began;  /* ns; 0: this call is too short to be timed */
    double cost[2]; /* ns a byte; 0: not yet known */
};
/* Which, 0 or 1, to use for so many bytes; autotune_end() when done: */
int autotune_begin(struct autotune *w, size_t bytes);
void autotune_end(struct autotune *w, size_t bytes);

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
    size_t arena_asked;     /* by this rank; the first rank of the host decides */
    ptrdiff_t arena_stride; /* from one rank's to the next's */
    uint32_t seq;           /* collectives announced */
    uint32_t steps;  /* this rank's step word, and all ranks' between collectives */
    const void **in; /* owned scratch, [n] */
    void **out;      /* owned scratch, [n] */
    bool barriers;   /* membarrier() is available on all ranks */
    int arrived;     /* ranks below this have reached what is waited for */
    bool shares_cpu; /* more ranks here than CPUs */
    uint64_t moves;  /* steps made, and pieces of messages sent or received */
    struct autotune showing; /* a result: at once, or in a copy of its own */
    struct autotune giving;  /* the same to the others' buffers in the arena */
};

/* `listener` is that for the ranks of this host (layout.h). */
struct shm *shm_join(const struct layout *layout, int listener, size_t arena_bytes,
                     int64_t timeout_ms, struct ddp_err *err);
void shm_leave(struct shm *s, bool announced); /* NULL is fine */

void *shm_arena_alloc(struct shm *s, size_t bytes, struct ddp_err *err);
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

/* Announce a call; wakes ranks that sleep for it. */
void shm_post(struct shm *s, uint32_t what, uint64_t bytes, int64_t where,
              const void *small, size_t nsmall);
void shm_step(struct shm *s);
void shm_wake(struct shm *s, int local); /* after writing what `local` may wait for */

/* Have all ranks entered the current collective, or reached the current step? If not,
 * s->arrived is a local rank that lags. */
bool shm_all_posted(struct shm *s);
bool shm_all_stepped(struct shm *s);

/* Record this rank's call, and read a local rank's: returns the number found in the
 * place of `number`. Less: it has not come so far. More: it is far ahead, and the
 * record is overwritten. */
void shm_record_call(struct shm *s, const struct call *call);
uint64_t shm_recorded_call(const struct shm *s, int local, uint64_t number,
                           struct call *call);

/* Sleep once for `local` (or SHM_ANY): until woken, or `ms` have passed, unless
 * `ready(arg)`. */
void shm_sleep(struct shm *s, unsigned local, int ms, bool (*ready)(void *arg),
               void *arg);

/* Has the local rank died or left? */
bool shm_is_gone(const struct shm *s, int local, bool *left);

/* The first failure on this host is every rank's: shm_fail() records one if it is the
 * first, shm_failed() returns the first. */
void shm_fail(struct shm *s, int culprit, const char *why);
bool shm_failed(const struct shm *s, int *culprit, struct ddp_err *err);

#endif
