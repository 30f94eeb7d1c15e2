/* common/limit.c - see limit.h */
#include "common/limit.h"

#include "common/mem.h"

#include <stdlib.h>

/* a wait: a tenth of the limit, within these bounds */
enum { WAITS = 10, LEAST_MS = 50, MOST_MS = 1000 };

struct limit {
    struct event *timer; /* owned */
    void (*fn)(void *arg);
    void *arg;
    int64_t left_ms, wait_ms, began_ms;
    int64_t longest_ms; /* of a wait */
};

static void wait_on(struct limit *l)
{
    l->wait_ms = l->left_ms < l->longest_ms ? l->left_ms : l->longest_ms;
    l->began_ms = now_ms();
    loop_arm(l->timer, l->wait_ms);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct limit *l = arg;
    l->left_ms -= limit_count_ms(now_ms() - l->began_ms, l->wait_ms);
    if (l->left_ms > 0)
        wait_on(l);
    else
        l->fn(l->arg);
}

void limit_arm(struct limit *l, int64_t ms)
{
    int64_t wait_ms = ms / WAITS < MOST_MS ? ms / WAITS : MOST_MS;
    l->left_ms = ms;
    l->longest_ms = wait_ms > LEAST_MS ? wait_ms : LEAST_MS;
    wait_on(l);
}

void limit_stop(struct limit *l)
{
    event_del(l->timer);
}

struct limit *limit_create(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    struct limit *l = xcalloc(1, sizeof *l);
    *l = (struct limit){.fn = fn, .arg = arg};
    l->timer = loop_timer(loop, on_timer, l);
    return l;
}

void limit_destroy(struct limit *l)
{
    if (!l)
        return;
    loop_free(l->timer);
    free(l);
}
