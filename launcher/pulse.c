/* launcher/pulse.c - are the nodes alive, and what do their clocks say
 *
 * A ping a second to each node behind a network; who has said nothing at all for
 * SILENCE_MS is lost. The answer that came back quickest tells best how far its clock is
 * ahead of ours, which puts the ends of ranks on different nodes into one order.
 */
#define LOG_SUBSYS "pulse"
#include "launcher/job_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <stdlib.h>

enum { BEAT_MS = 1000, SILENCE_MS = 5000 };

void job_ping(struct job *j, unsigned node)
{
    struct pack k = {0};
    pack_u64(&k, (uint64_t)now_ns());
    job_send(j, node, MSG_PING, &k);
    pack_finish(&k);
}

int job_hear_pong(struct job *j, unsigned node, const struct frame *f,
                  struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    int64_t sent = (int64_t)unpack_u64(&u), theirs = (int64_t)unpack_u64(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    struct job_node *n = &j->nodes[node];
    int64_t trip = now_ns() - sent;
    if (trip < 0 || sent <= 0)
        return err_set(err, "a 'pong' to no ping of ours");
    if (n->via != j->local && (n->best_trip_ns == 0 || trip < n->best_trip_ns)) {
        n->best_trip_ns = trip;
        n->ahead_ns = theirs - sent - trip / 2;
        log_debug("%s: clock %.3f ms ahead, trip %.3f ms", n->host->name,
                  (double)n->ahead_ns / 1e6, (double)trip / 1e6);
    }
    return 0;
}

static void on_beat(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    int64_t now = now_ms();
    /* when it was us who slept (stopped, or starved), silence proves nothing */
    bool slept = now - j->beat_ms > 2 * BEAT_MS;
    j->beat_ms = now;
    job_ping(j, NODE_ALL);
    for (unsigned i = 0; i < j->alloc->nnodes && j->state < JOB_LEAVING; i++) {
        struct job_node *n = &j->nodes[i];
        if (slept)
            n->heard_ms = now;
        if (n->via && n->via != j->local && !n->lost && now - n->heard_ms > SILENCE_MS) {
            char *why = xasprintf("nothing heard of it for %d s; is it up, and the "
                                  "network to it?",
                                  SILENCE_MS / 1000);
            job_node_lost(j, i, why);
            free(why);
        }
    }
}

int job_start_pulse(struct job *j, struct ddp_err *err)
{
    j->beat = event_new(loop_base(j->loop), -1, EV_PERSIST, on_beat, j);
    j->beat_ms = now_ms();
    if (!j->beat ||
        event_add(j->beat, &(struct timeval){BEAT_MS / 1000, BEAT_MS % 1000 * 1000}) < 0)
        return err_set(err, "cannot make an event");
    return 0;
}
