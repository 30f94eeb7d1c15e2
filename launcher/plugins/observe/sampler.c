/* launcher/plugins/observe/sampler.c - measures a node once a second, from WATCH on
 *
 * GPUs are read in a thread: the numbers of one second are sent with the next sample.
 */
#include "common/duration.h"
#include "common/mem.h"
#include "common/offload.h"
#include "launcher/agent/plugin.h"
#include "launcher/agent/ranks.h"
#include "launcher/plugins/observe/usage.h"
#include "launcher/plugins/plugins.h"

#include <stdlib.h>

struct gpus {
    struct gpu_use gpus[USAGE_GPUS_MAX];
    size_t n;
};

struct sampler {
    struct agent *a;     /* borrowed */
    struct event *timer; /* owned; NULL: no WATCH yet */
    struct usage_machine before;
    struct offload *reading; /* owned: of the GPUs; NULL: none */
    struct gpus gpus;        /* of the last reading */
};

/* --- samples ------------------------------------------------------------------------ */

static void read_gpus(void *copy)
{
    struct gpus *g = copy;
    g->n = usage_of_gpus(g->gpus);
}

static void turn_gpus(struct sampler *s)
{
    const struct gpus *done = s->reading ? offload_wait(s->reading, 0) : NULL;
    if (s->reading && !done)
        return; /* it blocks: no second one */
    bool none = done && done->n == 0;
    if (done)
        s->gpus = *done;
    offload_end(s->reading);
    s->reading = NULL;
    if (!none)
        s->reading = offload_begin(read_gpus, &s->gpus, sizeof s->gpus, NULL);
}

static void send_sample(struct sampler *s)
{
    struct usage_machine now;
    uint32_t n = s->a->share.nlocal;
    struct rank_use *ranks = xcalloc(n + 1, sizeof *ranks);
    usage_of_machine(&now);
    for (uint32_t i = 0; i < n; i++) {
        struct usage_proc u = {0};
        pid_t pid = ranks_pid(s->a->ranks, i);
        if (pid > 0)
            usage_of_tree(pid, &u);
        ranks[i] = (struct rank_use){(unsigned char)u.state, u.cpu_ms, u.rss_kib};
    }
    uint64_t busy = now.busy - s->before.busy, total = now.total - s->before.total;
    agent_send(s->a, MSG(sample, .at_ns = now_ns(),
                         .permille = total ? (uint32_t)(busy * 1000 / total) : 0,
                         .used_kib = now.used_kib, .total_kib = now.total_kib,
                         .ngpus = (uint32_t)s->gpus.n, .gpus = s->gpus.gpus, .nranks = n,
                         .ranks = ranks));
    s->before = now;
    free(ranks);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct sampler *s = arg;
    turn_gpus(s);
    send_sample(s);
}

static int handle_watch(void *state, const struct frame *f, struct ddp_err *err)
{
    struct sampler *s = state;
    const struct msg_watch *m = f->m;
    if (!s->timer)
        s->timer = loop_event(s->a->loop, -1, EV_PERSIST, on_timer, s);
    if (!m->on) {
        event_del(s->timer);
        return 0;
    }
    loop_arm(s->timer, 1000);
    turn_gpus(s);
    send_sample(s);
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static void on_fini(void *state)
{
    struct sampler *s = state;
    loop_free(s->timer);
    offload_end(s->reading);
    free(s);
}

static const struct agent_message messages[] = {{MSG_WATCH, handle_watch}, {0}};

const struct agent_plugin observe_agent = {
    .name = "observe",
    .state_size = sizeof(struct sampler),
    .fini = on_fini,
    .messages = messages,
};
