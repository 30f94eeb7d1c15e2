/* worker/ddp/saver.c - see saver.h */
#include "worker/ddp/saver.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

struct saver {
    struct ddp_group *group; /* borrowed */
    const char *place;       /* borrowed */
    size_t shard_bytes;
    bool leads;   /* this is rank 0 */
    int run_lock; /* rank 0's; while the thread writes, it is the thread's */
    pthread_t thread;
    bool writing;                /* the thread runs */
    struct checkpoint *snapshot; /* owned */
    atomic_bool cancelled;
    uint64_t step;         /* of `snapshot` */
    _Atomic uint64_t done; /* of the newest that is complete */
    int rc;                /* the thread's */
    struct ddp_err why;    /* the thread's */
    char *path;            /* owned: the thread's, while it runs */
    int64_t stalled_ns;
};

struct saver *saver_create(struct ddp_group *group, const char *place, size_t shard_bytes)
{
    struct saver *s = xcalloc(1, sizeof *s);
    s->group = group;
    s->place = place;
    s->shard_bytes = shard_bytes;
    s->leads = ddp_group_rank(group) == 0;
    s->run_lock = -1;
    return s;
}

int saver_prepare(struct saver *s, struct ddp_err *err)
{
    TRY(checkpoint_prepare(s->place, err));
    return checkpoint_lock(s->place, &s->run_lock, err);
}

static void *write_it(void *arg)
{
    struct saver *s = arg;
    if (s->leads && checkpoint_lock(s->place, &s->run_lock, &s->why) < 0)
        s->rc = err_prefix(&s->why, "no checkpoint");
    else
        s->rc = checkpoint_write(s->snapshot, &s->cancelled,
                                 s->leads ? &s->run_lock : NULL, &s->path, &s->why);
    if (s->rc == 0 && s->leads)
        atomic_store(&s->done, s->step);
    return NULL;
}

/* Waits for this rank's part. */
static int join(struct saver *s, struct ddp_err *err)
{
    if (s->writing) {
        int64_t began = now_ns();
        pthread_join(s->thread, NULL);
        s->stalled_ns += now_ns() - began;
        s->writing = false;
    }
    int rc = s->rc;
    s->rc = 0;
    return rc < 0 ? err_set(err, "%s", s->why.text) : 0;
}

/* With several parts, rank 0's thread waits for those of the other ranks, and so is
 * only waited for when their outcome is known. */
int saver_finish(struct saver *s, int *culprit, struct ddp_err *err)
{
    struct ddp_err ignored;
    int who;
    bool parts = checkpoint_parts(s->snapshot) > 1;
    int rc = replica_agree(s->group, parts && s->leads ? 0 : join(s, err), &who, err);
    if (rc == 0 && parts)
        rc = replica_agree(s->group, join(s, err), &who, err);
    if (rc < 0) {
        atomic_store(&s->cancelled, true);
        if (who >= 0) {
            join(s, &ignored);
            checkpoint_discard(s->snapshot);
        }
        if (culprit)
            *culprit = who;
        return -1;
    }
    checkpoint_free(s->snapshot);
    s->snapshot = NULL;
    return 0;
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
    s->writing = s->snapshot && thread_start(&s->thread, write_it, s) == 0;
    if (s->snapshot && !s->writing)
        s->rc = err_set(&s->why, "no checkpoint: cannot start a thread");
    s->stalled_ns += now_ns() - began;
    return 0;
}

void saver_destroy(struct saver *s)
{
    struct ddp_err ignored;
    if (!s)
        return;
    atomic_store(&s->cancelled, true);
    join(s, &ignored);
    checkpoint_free(s->snapshot);
    checkpoint_unlock(&s->run_lock);
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
