/* launcher/link/heartbeat.c - see heartbeat.h
 *
 * One beat adds at most BEAT_MS of silence, however late it is: a process that was
 * stopped for an hour counts its peers silent for one more beat only.
 */
#define LOG_SUBSYS "heartbeat"
#include "launcher/link/heartbeat.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <stdlib.h>

enum { LATE_MS = BEAT_MS / 2 };

struct heartbeat {
    struct event *timer; /* owned */
    void (*beat)(void *arg);
    void *arg;
    int64_t last_ms;    /* monotonic */
    int64_t elapsed_ms; /* between the last two beats, BEAT_MS at most */
};

static void on_beat(evutil_socket_t fd, short what, void *arg)
{
    struct heartbeat *h = arg;
    int64_t now = now_ms(), elapsed_ms = now - h->last_ms;
    if (elapsed_ms > BEAT_MS + LATE_MS)
        log_info("this process did not run for %.1f s: stopped, blocked, or without a CPU",
                 (double)(elapsed_ms - BEAT_MS) / 1e3);
    h->elapsed_ms = elapsed_ms < BEAT_MS ? elapsed_ms : BEAT_MS;
    h->last_ms = now;
    h->beat(h->arg);
}

int64_t heartbeat_count(const struct heartbeat *h, struct silence *s, int64_t heard_ms)
{
    s->silent_ms = heard_ms == s->heard_ms ? s->silent_ms + h->elapsed_ms : 0;
    s->heard_ms = heard_ms;
    return s->silent_ms;
}

struct heartbeat *heartbeat_create(struct loop *loop, void (*beat)(void *arg), void *arg,
                                   struct ddp_err *err)
{
    struct heartbeat *h = xcalloc(1, sizeof *h);
    *h = (struct heartbeat){.beat = beat, .arg = arg, .last_ms = now_ms()};
    h->timer = event_new(loop_base(loop), -1, EV_PERSIST, on_beat, h);
    if (!h->timer ||
        event_add(h->timer, &(struct timeval){BEAT_MS / 1000, BEAT_MS % 1000 * 1000}) < 0) {
        err_set(err, "cannot make an event");
        heartbeat_destroy(h);
        return NULL;
    }
    return h;
}

void heartbeat_destroy(struct heartbeat *h)
{
    if (!h)
        return;
    if (h->timer)
        event_free(h->timer);
    free(h);
}
