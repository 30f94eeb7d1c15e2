/* worker/ddp/saver.c - see saver.h */
#include "worker/ddp/saver.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/offload.h"
#include "common/output_path.h"

#include <stdlib.h>
#include <sys/random.h>

/* While a rank writes, the ranks meet this often in a collective, in which a dead one is
 * noticed. They do so for at most REPLICA_PATIENCE timeouts of the group. */
enum { ROUND_MS = 1000, TELL_MS = 60 * 1000 };

struct saver {
    struct ddp_group *group; /* borrowed */
    char *place;             /* owned; links are followed once */
    const char *refused;     /* why not; NULL: they were */
    size_t shard_bytes;
    bool leads;              /* this is rank 0 */
    int run_lock;            /* rank 0's; while the thread writes, it is the thread's */
    struct offload *writing; /* owned: the thread; NULL: none runs */
    bool stuck;              /* it is not waited for any more */
    struct checkpoint *snapshot; /* owned */
    atomic_bool cancelled;
    uint64_t step;         /* of `snapshot` */
    _Atomic uint64_t done; /* of the newest that is complete */
    int rc;                /* the thread's */
    struct ddp_err why;    /* the thread's */
    char *path;            /* owned: the thread's, while it runs */
    int64_t stalled_ns;
    saver_slow_fn on_slow; /* may be NULL */
    void *arg;             /* its own */
};

struct saver *saver_create(struct ddp_group *group, const char *place, size_t shard_bytes)
{
    struct saver *s = xcalloc(1, sizeof *s);
    s->group = group;
    s->place = output_path_follow(place, &s->refused);
    if (!s->place)
        s->place = xstrdup(place);
    s->shard_bytes = shard_bytes;
    s->leads = ddp_group_rank(group) == 0;
    s->run_lock = -1;
    return s;
}

int saver_prepare(struct saver *s, saver_slow_fn on_slow, void *arg, struct ddp_err *err)
{
    s->on_slow = on_slow;
    s->arg = arg;
    if (s->refused)
        return err_set(err, "cannot write checkpoints to '%s': %s", s->place, s->refused);
    TRY(checkpoint_prepare(s->place, err));
    return checkpoint_lock(s->place, &s->run_lock, err);
}

static void write_it(void *arg)
{
    struct saver *s = *(struct saver **)arg;
    if (s->leads && checkpoint_lock(s->place, &s->run_lock, &s->why) < 0)
        s->rc = err_prefix(&s->why, "no checkpoint");
    else
        s->rc = checkpoint_write(s->snapshot, &s->cancelled,
                                 s->leads ? &s->run_lock : NULL, &s->path, &s->why);
    if (s->rc == 0 && s->leads)
        atomic_store(&s->done, s->step);
}

/* Waits until the thread has ended, for `ms` at most; false: it is still writing. */
static bool is_idle(struct saver *s, int64_t ms)
{
    if (s->writing && offload_wait(s->writing, ms)) {
        offload_end(s->writing);
        s->writing = NULL;
    }
    return !s->writing;
}

/* The same after a failure; a thread that was stuck before is only looked at. */
static bool has_ended(struct saver *s, int64_t ms)
{
    atomic_store(&s->cancelled, true);
    s->stuck = !is_idle(s, s->stuck ? ROUND_MS : ms);
    return !s->stuck;
}

/* What the ranks know of each other after a round: the largest numbers of all. */
struct round {
    int32_t failed, late; /* is one so? */
    int32_t writing;      /* 1 + the last that is; rank 0 waits for the others' parts */
};

static int meet(struct saver *s, int64_t began_ms, struct round *all, struct ddp_err *err)
{
    int64_t timeout = ddp_group_timeout(s->group), ms = timeout / 4;
    bool idle = is_idle(s, ms < ROUND_MS ? ms : ROUND_MS);
    bool failed = idle && s->rc < 0;
    bool late = now_ms() - began_ms > REPLICA_PATIENCE * timeout;
    *all = (struct round){failed, late, idle ? 0 : 1 + ddp_group_rank(s->group)};
    return ddp_all_reduce(s->group, all, sizeof *all / sizeof(int32_t), DDP_I32, DDP_MAX,
                          err);
}

static void tell_slow(const struct saver *s, int rank, int64_t began_ms, int64_t *next_ms)
{
    if (!s->on_slow || now_ms() < *next_ms)
        return;
    *next_ms += TELL_MS;
    s->on_slow(s->arg, rank, (double)(now_ms() - began_ms) / 1000);
}

/* Waits for all ranks' threads, however slow their file system is, until one fails. */
static int await_all(struct saver *s, int *who, struct ddp_err *err)
{
    int64_t began_ms = now_ms(), next_ms = began_ms + TELL_MS;
    struct round all;
    *who = -1;
    TRY(meet(s, began_ms, &all, err));
    while (all.writing && !all.failed && !all.late) {
        tell_slow(s, all.writing - 1, began_ms, &next_ms);
        TRY(meet(s, began_ms, &all, err));
    }
    if (all.failed) {
        bool mine = !s->writing && s->rc < 0;
        return replica_agree(s->group, mine ? err_set(err, "%s", s->why.text) : 0, who,
                             err);
    }
    if (!all.writing)
        return 0;
    s->stuck = s->writing;
    *who = all.writing - 1;
    return err_set(
        err,
        "no checkpoint: rank %d has not written its part of '%s' in %.0f s, %d "
        "times the group's timeout: is the file system stuck?",
        *who, s->place, (double)(now_ms() - began_ms) / 1000, REPLICA_PATIENCE);
}

int saver_finish(struct saver *s, int *culprit, struct ddp_err *err)
{
    int64_t began = now_ns();
    int who, rc = await_all(s, &who, err);
    s->stalled_ns += now_ns() - began;
    if (rc < 0) {
        atomic_store(&s->cancelled, true);
        /* others may wait for this rank in a collective */
        if (who >= 0 && has_ended(s, ddp_group_timeout(s->group) / 2))
            checkpoint_discard(s->snapshot);
        if (culprit)
            *culprit = who;
    } else {
        checkpoint_free(s->snapshot);
        s->snapshot = NULL;
    }
    s->rc = 0;
    return rc;
}

int saver_start(struct saver *s, const struct replica *r, const struct train_state *at,
                const struct strv *extra, int *culprit, struct ddp_err *err)
{
    TRY(saver_finish(s, culprit, err));
    int64_t began = now_ns();
    uint32_t id = 0;
    if (s->leads && getrandom(&id, sizeof id, 0) < 0)
        id = (uint32_t)began;
    TRY(ddp_broadcast(s->group, &id, 1, DDP_I32, 0, err));
    s->snapshot = checkpoint_take(s->place, r, at, ddp_group_rank(s->group),
                                  s->shard_bytes, id, extra);
    s->step = at->step;
    atomic_store(&s->cancelled, false);
    if (s->snapshot &&
        !(s->writing = offload_begin(write_it, &s, sizeof(void *), &s->why)))
        s->rc = err_prefix(&s->why, "no checkpoint");
    s->stalled_ns += now_ns() - began;
    return 0;
}

/* A thread that is stuck keeps what it uses. */
void saver_destroy(struct saver *s)
{
    if (!s)
        return;
    if (!has_ended(s, ddp_group_timeout(s->group)))
        return;
    checkpoint_free(s->snapshot);
    checkpoint_unlock(&s->run_lock);
    free(s->place);
    free(s->path);
    free(s);
}

uint64_t saver_written(const struct saver *s)
{
    return atomic_load(&s->done);
}

const char *saver_path(const struct saver *s)
{
    return s ? s->path : NULL;
}

double saver_stalled_s(const struct saver *s)
{
    return (double)s->stalled_ns / 1e9;
}
