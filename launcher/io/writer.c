/* launcher/io/writer.c - see writer.h
 *
 * One lock, never held during I/O. The first chunk starts the thread, which wakes the
 * loop through an eventfd, and only for events the loop waits for. A chunk counts as
 * pending until all of it is written.
 */
#include "launcher/io/writer.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/thread.h"
#include "common/write_all.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

/* bytes: a chunk of CHUNK is queued at once, without waiting for the end of the loop
 * iteration; CHUNK_LEAST is the smallest allocation */
enum { CHUNK = 256 << 10, CHUNK_LEAST = 4 << 10 };

struct chunk {
    struct chunk *prev, *next;
    size_t size, room;
    char data[];
};

struct writer {
    struct loop *loop; /* borrowed */
    struct writer_target target;
    struct writer_events events;
    struct chunk *filling; /* owned; NULL: nothing collected */
    struct event *wake;    /* owned */
    bool posted;           /* to be queued at the end of this loop iteration */
    bool reported;         /* `failed` has been called */
    bool started;
    pthread_t thread;
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t work, idle;
    struct chunk *queue;   /* owned */
    atomic_size_t pending; /* bytes in `filling`, in the queue, or being written */
    int wake_fd;           /* owned */
    atomic_bool full;      /* was above WRITER_HIGH and not yet below WRITER_LOW since;
                              only the loop sets and clears it */
    bool finishing;        /* writer_finish(): call `drained` when all is written */
    bool end;              /* the thread must exit */
    bool abandoned;        /* ... and free everything then */
    bool busy;             /* in put() */
    int error;             /* the first error of put() */
};

/* ---- in the thread ---- */

static void free_shared(struct writer *w)
{
    struct chunk *c, *next;
    DL_FOREACH_SAFE (w->queue, c, next)
        free(c);
    w->target.release(w->target.to);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->lock);
    close(w->wake_fd);
    free(w);
}

/* With the lock held. Wake the loop if an event it waits for has occurred. */
static void wake_loop(struct writer *w, bool failed)
{
    bool empty = w->pending == 0;
    if (empty)
        pthread_cond_broadcast(&w->idle);
    if (failed || (empty && w->finishing) || (w->full && w->pending < WRITER_LOW))
        eventfd_write(w->wake_fd, 1);
}

/* With the lock held, released while writing. The queue is not empty. */
static void write_first(struct writer *w)
{
    struct chunk *c = w->queue;
    DL_DELETE(w->queue, c);
    w->busy = true;
    pthread_mutex_unlock(&w->lock);
    int error = w->target.put(w->target.to, c->data, c->size);
    pthread_mutex_lock(&w->lock);
    w->busy = false;
    w->pending -= c->size;
    bool first = error && !w->error;
    w->error = first ? error : w->error;
    free(c);
    if (!w->end)
        wake_loop(w, first);
}

static void *write_chunks(void *arg)
{
    struct writer *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->end) {
        if (w->queue)
            write_first(w);
        else
            pthread_cond_wait(&w->work, &w->lock);
    }
    bool abandoned = w->abandoned;
    pthread_mutex_unlock(&w->lock);
    if (abandoned)
        free_shared(w);
    return NULL;
}

/* ---- in the loop ---- */

/* If no thread can be created (see 'ulimit -u'), the loop writes this chunk itself, and
 * the next chunk tries again. */
static void start(struct writer *w)
{
    w->started = thread_start(&w->thread, write_chunks, w) == 0;
    pthread_mutex_lock(&w->lock);
    while (!w->started && w->queue)
        write_first(w);
    pthread_mutex_unlock(&w->lock);
}

void writer_prepare(struct writer *w)
{
    if (!w->started)
        start(w);
}

static void hand_over(struct writer *w)
{
    struct chunk *c = w->filling;
    if (!c)
        return;
    w->filling = NULL;
    pthread_mutex_lock(&w->lock);
    DL_APPEND(w->queue, c);
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    writer_prepare(w);
}

static void on_turn_end(void *arg)
{
    struct writer *w = arg;
    w->posted = false;
    hand_over(w);
}

char *writer_reserve(struct writer *w, size_t size)
{
    struct chunk *c = w->filling;
    size_t used = c ? c->size : 0, room = c ? c->room : CHUNK_LEAST;
    if (!c || room - used < size) {
        while (room - used < size)
            room *= 2;
        c = xrealloc(c, sizeof *c + room, 1);
        c->size = used;
        c->room = room;
        w->filling = c;
    }
    return c->data + used;
}

void writer_commit(struct writer *w, size_t size)
{
    w->filling->size += size;
    /* not in hand_over(): the owner may have seen a size that is smaller by then */
    if (atomic_fetch_add(&w->pending, size) + size >= WRITER_HIGH)
        w->full = true;
    if (w->filling->size >= CHUNK) {
        hand_over(w);
    } else if (!w->posted) {
        w->posted = true;
        loop_post(w->loop, on_turn_end, w);
    }
}

size_t writer_pending(const struct writer *w)
{
    return w->pending;
}

/* Call the due callbacks. */
static void call_owner(struct writer *w)
{
    pthread_mutex_lock(&w->lock);
    int error = w->reported ? 0 : w->error;
    bool drained =
        (w->full && w->pending < WRITER_LOW) || (w->finishing && w->pending == 0);
    if (drained)
        w->full = w->finishing = false;
    pthread_mutex_unlock(&w->lock);
    w->reported |= error != 0;
    if (error)
        w->events.failed(error, w->events.arg);
    if (drained)
        w->events.drained(w->events.arg);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    eventfd_t count;
    eventfd_read(fd, &count);
    call_owner(arg);
}

bool writer_finish(struct writer *w)
{
    hand_over(w);
    pthread_mutex_lock(&w->lock);
    bool written = w->pending == 0;
    w->finishing = !written;
    w->full &= !written; /* the caller sees it by the return value */
    pthread_mutex_unlock(&w->lock);
    if (written)
        call_owner(w);
    return written;
}

bool writer_wait(struct writer *w, int64_t deadline_ms)
{
    hand_over(w);
    pthread_mutex_lock(&w->lock);
    int rc = 0;
    while (w->pending > 0 && rc == 0)
        rc = cond_wait_until(&w->idle, &w->lock, deadline_ms);
    bool written = w->pending == 0;
    pthread_mutex_unlock(&w->lock);
    call_owner(w);
    return written;
}

struct writer *writer_create(struct loop *loop, const struct writer_target *target,
                             const struct writer_events *events, struct ddp_err *err)
{
    int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0) {
        err_errno(err, "cannot write output");
        return NULL;
    }
    struct writer *w = xcalloc(1, sizeof *w);
    *w = (struct writer){.loop = loop, .target = *target, .events = *events};
    pthread_cond_init(&w->work, NULL);
    cond_init(&w->idle);
    pthread_mutex_init(&w->lock, NULL);
    w->wake_fd = wake_fd;
    w->wake = loop_watch(loop, w->wake_fd, EV_READ | EV_PERSIST, on_wake, w);
    return w;
}

/* Used by the writer's thread only. */
struct fd_target {
    int fd;
    bool owned, failed;
};

static int put_fd(void *to, const char *data, size_t size)
{
    struct fd_target *t = to;
    if (t->failed || write_all(t->fd, data, size) == 0)
        return 0;
    t->failed = true;
    return errno;
}

static void release_fd(void *to)
{
    struct fd_target *t = to;
    if (t->owned)
        close(t->fd);
    free(t);
}

struct writer *writer_create_fd(struct loop *loop, int fd, bool owned,
                                const struct writer_events *events, struct ddp_err *err)
{
    struct fd_target *t = xcalloc(1, sizeof *t);
    *t = (struct fd_target){.fd = fd, .owned = owned};
    struct writer *w =
        writer_create(loop, &(struct writer_target){put_fd, release_fd, t}, events, err);
    if (!w) {
        t->owned = false; /* still the caller's */
        release_fd(t);
    }
    return w;
}

void writer_destroy(struct writer *w)
{
    if (!w)
        return;
    loop_unpost(w->loop, w);
    loop_free(w->wake);
    free(w->filling);
    pthread_mutex_lock(&w->lock);
    bool stuck = w->busy;
    w->end = true;
    w->abandoned = stuck;
    if (stuck)
        pthread_detach(w->thread); /* once unlocked, it frees the rest at any time */
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    if (stuck)
        return;
    if (w->started)
        pthread_join(w->thread, NULL);
    free_shared(w);
}
