/* common/background.c - see background.h
 *
 * One lock, never held during a call. The thread wakes the loop by an eventfd.
 */
#include "common/background.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/thread.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PATIENCE_MS = 100 }; /* at the end, for a call that only takes its time */

struct list {
    struct background_call *first, *last;
};

struct background {
    struct event *wake;   /* owned, the loop's */
    bool started;         /* the loop's */
    int wake_fd;          /* owned */
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t work;
    struct list waiting, finished;
    int64_t since_ms; /* monotonic: the present call's begin; 0: none */
    bool end;         /* the thread, if there is one, frees everything */
};

static void append(struct list *l, struct background_call *c)
{
    c->next = NULL;
    *(l->first ? &l->last->next : &l->first) = c;
    l->last = c;
}

static struct list take_all(struct background *b, struct list *from)
{
    LOCKED(&b->lock);
    struct list all = *from;
    *from = (struct list){0};
    return all;
}

static void report(struct list all, bool ran)
{
    for (struct background_call *c = all.first, *next; c; c = next) {
        next = c->next;
        c->done(c, ran);
    }
}

static void let_go(struct background *b)
{
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->lock);
    close(b->wake_fd);
    free(b);
}

/* With the lock held, released during the call. */
static void run_first(struct background *b)
{
    struct background_call *c = b->waiting.first;
    b->waiting.first = c->next;
    b->since_ms = now_ms();
    pthread_mutex_unlock(&b->lock);
    c->run(c);
    pthread_mutex_lock(&b->lock);
    b->since_ms = 0;
    if (b->end)
        return;
    if (!b->finished.first)
        eventfd_write(b->wake_fd, 1);
    append(&b->finished, c);
}

static void *run_calls(void *arg)
{
    struct background *b = arg;
    pthread_mutex_lock(&b->lock);
    while (!b->end) {
        if (b->waiting.first)
            run_first(b);
        else
            pthread_cond_wait(&b->work, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    let_go(b);
    return NULL;
}

/* ---- in the loop ---- */

static void on_finished(evutil_socket_t fd, short what, void *arg)
{
    struct background *b = arg;
    eventfd_t n;
    eventfd_read(b->wake_fd, &n);
    report(take_all(b, &b->finished), true);
}

void background_run(struct background *b, struct background_call *c)
{
    if (!b->started)
        b->started = thread_start(NULL, run_calls, b) == 0;
    LOCKED(&b->lock);
    append(&b->waiting, c);
    if (b->started)
        pthread_cond_signal(&b->work);
    else
        run_first(b);
}

void background_drop(struct background *b)
{
    report(take_all(b, &b->waiting), false);
}

int64_t background_busy_ms(struct background *b)
{
    LOCKED(&b->lock);
    return b->since_ms ? now_ms() - b->since_ms : 0;
}

struct background *background_create(struct loop *l, struct ddp_err *err)
{
    struct background *b = xcalloc(1, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->wake_fd < 0) {
        err_errno(err, "cannot make an eventfd");
        background_end(b);
        return NULL;
    }
    b->wake = loop_watch(l, b->wake_fd, EV_READ | EV_PERSIST, on_finished, b);
    return b;
}

static bool is_busy(struct background *b)
{
    LOCKED(&b->lock);
    return b->since_ms != 0;
}

bool background_end(struct background *b)
{
    if (!b)
        return true;
    background_drop(b);
    on_finished(b->wake_fd, 0, b);
    if (is_busy(b))
        poll(&(struct pollfd){.fd = b->wake_fd, .events = POLLIN}, 1, PATIENCE_MS);
    loop_free(b->wake);
    pthread_mutex_lock(&b->lock);
    struct list finished = b->finished;
    bool idle = b->since_ms == 0, started = b->started;
    b->end = true;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
    report(finished, true);
    if (!started)
        let_go(b);
    return idle;
}
