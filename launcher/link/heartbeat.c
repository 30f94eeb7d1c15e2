/* launcher/link/heartbeat.c - see heartbeat.h
 *
 * A beat that is late adds one interval of silence, however late it is (common/limit.h):
 * a process that was stopped for an hour counts its peers silent for one more beat only.
 */
#define LOG_SUBSYS "heartbeat"
#include "launcher/link/heartbeat.h"

#include "common/duration.h"
#include "common/limit.h"
#include "common/log.h"
#include "common/mem.h"

#include <stdlib.h>

enum { MOST_MS = 1000, LEAST_BEATS = 10, LATE_MS = 500 };

struct heartbeat {
    struct event *timer; /* owned */
    void (*beat)(void *arg);
    void *arg;
    int64_t timeout_ms, interval_ms;
    int64_t last_ms;    /* by boot_ms() */
    int64_t late_ms;    /* of all beats so far */
    int64_t elapsed_ms; /* between the last two beats, as far as this process ran */
};

static void on_beat(evutil_socket_t fd, short what, void *arg)
{
    struct heartbeat *h = arg;
    int64_t now = boot_ms(), elapsed_ms = now - h->last_ms;
    int64_t late_ms = elapsed_ms - h->interval_ms;
    if (late_ms > LATE_MS) {
        h->late_ms += late_ms;
        log_info(
            "this process did not run for %.1f s: stopped, blocked, or without a CPU",
            (double)late_ms / 1e3);
    }
    h->elapsed_ms = limit_count_ms(elapsed_ms, h->interval_ms);
    h->last_ms = now;
    h->beat(h->arg);
}

int64_t heartbeat_late_ms(const struct heartbeat *h)
{
    int64_t late_ms = boot_ms() - h->last_ms - h->interval_ms;
    return h->late_ms + (late_ms > LATE_MS ? late_ms : 0);
}

/* Timers are not exact: a beat a little before the timeout is the one at the timeout. */
bool heartbeat_silent(const struct heartbeat *h, struct silence *s, int64_t heard_ms)
{
    bool silent = heard_ms == s->heard_ms;
    s->silent_ms = silent ? s->silent_ms + h->elapsed_ms : 0;
    s->heard_for_ms += silent ? 0 : h->elapsed_ms;
    s->heard_ms = heard_ms;
    return s->silent_ms >= h->timeout_ms - h->interval_ms / 8;
}

void heartbeat_set_timeout(struct heartbeat *h, int64_t timeout_ms)
{
    int64_t beats = (timeout_ms + MOST_MS - 1) / MOST_MS;
    h->timeout_ms = timeout_ms;
    h->interval_ms = timeout_ms / (beats > LEAST_BEATS ? beats : LEAST_BEATS);
    h->last_ms = boot_ms();
    loop_arm(h->timer, h->interval_ms);
}

struct heartbeat *heartbeat_create(struct loop *loop, int64_t timeout_ms,
                                   void (*beat)(void *arg), void *arg)
{
    struct heartbeat *h = xcalloc(1, sizeof *h);
    *h = (struct heartbeat){.beat = beat, .arg = arg};
    h->timer = loop_event(loop, -1, EV_PERSIST, on_beat, h);
    heartbeat_set_timeout(h, timeout_ms);
    return h;
}

void heartbeat_destroy(struct heartbeat *h)
{
    if (!h)
        return;
    loop_free(h->timer);
    free(h);
}
