/* worker/saver.c - see saver.h */
#include "worker/saver.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdlib.h>

struct saver {
    const char *place;    /* borrowed */
    struct lock run_lock; /* rank 0's; while the thread writes, it is the thread's */
    pthread_t thread;
    bool leads;                  /* this is rank 0 */
    bool writing;                /* the thread runs */
    bool waits;                  /* it waits for the other ranks' parts */
    struct checkpoint *snapshot; /* owned */
    atomic_bool cancelled;
    uint64_t step;         /* of `snapshot` */
    _Atomic uint64_t done; /* of the newest that is complete */
    int rc;                /* the thread's */
    char *written;         /* owned: the thread's */
    struct ddp_err why;    /* the thread's */
    char *path;            /* owned */
    int64_t stalled_ns;
};

struct saver *saver_create(const char *place)
{
    struct saver *s = xcalloc(1, sizeof *s);
    s->place = place;
    s->run_lock = lock_none();
    return s;
}

int saver_lock(struct saver *s, struct ddp_err *err)
{
    return lock_take(&s->run_lock, s->place, err);
}

static void *write_it(void *arg)
{
    struct saver *s = arg;
    if (s->leads && lock_take(&s->run_lock, s->place, &s->why) < 0)
        s->rc = err_prefix(&s->why, "no checkpoint");
    else
        s->rc = checkpoint_write(s->snapshot, &s->cancelled,
                                 s->leads ? &s->run_lock : NULL, &s->written, &s->why);
    if (s->rc == 0 && s->leads)
        atomic_store(&s->done, s->step);
    return NULL;
}

void saver_clear(struct saver *s, const struct checkpoint_info *info, struct model *model,
                 const struct optim *optim)
{
    checkpoint_clear(s->place, info, checkpoint_parts(info, model, optim));
}

int saver_start(struct saver *s, const struct checkpoint_info *info, struct model *model,
                const struct optim *optim, struct ddp_err *err)
{
    int64_t began = now_ns();
    s->snapshot = checkpoint_take(s->place, info, model, optim);
    s->rc = 0;
    s->step = info->state.step;
    s->leads = info->rank == 0;
    atomic_store(&s->cancelled, false);
    if (s->snapshot) {
        s->waits = info->rank == 0 && checkpoint_parts(info, model, optim) > 1;
        if (thread_start(&s->thread, write_it, s) != 0) {
            checkpoint_free(s->snapshot);
            s->snapshot = NULL;
            return err_set(err, "no checkpoint: cannot start a thread");
        }
        s->writing = true;
    }
    s->stalled_ns += now_ns() - began;
    return 0;
}

static int join(struct saver *s, struct ddp_err *err)
{
    if (s->writing) {
        int64_t began = now_ns();
        pthread_join(s->thread, NULL);
        s->stalled_ns += now_ns() - began;
        s->writing = s->waits = false;
        checkpoint_free(s->snapshot);
        s->snapshot = NULL;
        if (s->written) {
            free(s->path);
            s->path = s->written;
            s->written = NULL;
        }
    }
    int rc = s->rc;
    s->rc = 0;
    return rc < 0 ? err_set(err, "%s", s->why.text) : 0;
}

int saver_part(struct saver *s, struct ddp_err *err)
{
    return s->waits ? 0 : join(s, err);
}

void saver_cancel(struct saver *s)
{
    atomic_store(&s->cancelled, true);
}

int saver_end(struct saver *s, struct ddp_err *err)
{
    return join(s, err);
}

void saver_destroy(struct saver *s)
{
    struct ddp_err ignored;
    if (!s)
        return;
    saver_cancel(s);
    join(s, &ignored);
    lock_release(&s->run_lock);
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
