/* launcher/plugins/observe/sampler.c - measures a node once a second, from WATCH on
 *
 * GPUs are read by ddprun-gpus, as NVML may block: the numbers of one second are sent
 * with the next sample.
 *
 * Descendants are those that /proc/PID/task/PID/children lists: started by the main
 * thread of their parent, as data loaders and shells do. No scan of all processes.
 */
#define LOG_SUBSYS "agent"
#include "common/ancestry.h"
#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "launcher/agent/plugin.h"
#include "launcher/agent/ranks.h"
#include "launcher/place/bind.h"
#include "launcher/plugins/plugins.h"
#include "launcher/transport/own_program.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* processes of one rank that are counted; GPUs of the node */
enum { TREE_MAX = 256, GPUS_MAX = 32 };

struct gpus {
    struct own_program program;    /* ddprun-gpus --use */
    struct evbuffer *text;         /* owned: the beginning of a line */
    struct gpu_use list[GPUS_MAX]; /* of the last line */
    size_t n;
};

struct machine {
    uint64_t busy, total; /* of all CPUs since boot, in clock ticks */
    uint64_t used_kib, total_kib;
};

struct sampler {
    struct agent *a;     /* borrowed */
    struct event *timer; /* owned; NULL: no WATCH yet */
    struct machine before;
    struct gpus gpus;
};

/* --- what is in use ----------------------------------------------------------------- */

/* Adds to `u`; returns the state. */
static char add_process(pid_t pid, struct rank_use *u)
{
    struct ancestry_use p;
    if (!ancestry_use(pid, &p))
        return 0;
    u->cpu_ms += (p.user + p.system + (unsigned long)(p.child_user + p.child_system)) *
                 1000 / (unsigned long)sysconf(_SC_CLK_TCK);
    u->rss_kib += (uint64_t)p.pages * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    return p.state;
}

/* Shared pages count for each process. */
static void measure_rank(pid_t pid, struct rank_use *u)
{
    pid_t pids[TREE_MAX] = {pid};
    size_t n = 1;
    *u = (struct rank_use){0};
    for (size_t i = 0; i < n; i++) {
        char path[64], list[4096], *at = list, *end;
        char state = add_process(pids[i], u);
        if (i == 0)
            u->state = (unsigned char)state;
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pids[i],
                 (int)pids[i]);
        read_start(path, list, sizeof list);
        for (long child; n < TREE_MAX && (child = strtol(at, &end, 10)) > 0; at = end)
            pids[n++] = (pid_t)child;
    }
}

static void measure_machine(struct machine *m)
{
    char text[4096];
    unsigned long long t[8] = {0}, total = 0, available = 0;
    read_start("/proc/stat", text, sizeof text);
    sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2],
           &t[3], &t[4], &t[5], &t[6], &t[7]);
    *m = (struct machine){0};
    for (int i = 0; i < 8; i++)
        m->total += t[i];
    m->busy = m->total - t[3] - t[4]; /* idle, waiting for I/O */
    read_start("/proc/meminfo", text, sizeof text);
    const char *line = strstr(text, "MemAvailable:");
    sscanf(text, "MemTotal: %llu", &total);
    if (line)
        sscanf(line, "MemAvailable: %llu", &available);
    m->total_kib = total;
    m->used_kib = total > available ? total - available : 0;
}

/* --- GPUs --------------------------------------------------------------------------- */

static void read_line(struct gpus *g, const char *line)
{
    int length;
    struct gpu_use u;
    g->n = 0;
    for (const char *p = line;
         g->n < GPUS_MAX &&
         sscanf(p, "%u:%u:%u %n", &u.percent, &u.used_mib, &u.total_mib, &length) == 3;
         p += length)
        g->list[g->n++] = u;
}

static void on_gpus(const void *data, size_t n, void *arg)
{
    struct gpus *g = arg;
    char *line;
    evbuffer_add(g->text, data, n);
    while ((line = evbuffer_readln(g->text, NULL, EVBUFFER_EOL_LF))) {
        read_line(g, line);
        free(line);
    }
}

static void start_gpus(struct sampler *s)
{
    SCOPED(strv_finish) struct strv args = {0};
    struct ddp_err err;
    if (s->gpus.program.pid > 0 || topo_gpus() == 0)
        return;
    strv_push(&args, "--use");
    evbuffer_drain(s->gpus.text, evbuffer_get_length(s->gpus.text));
    if (own_program_start(&s->gpus.program, s->a->loop, "ddprun-gpus", &args, -1, &err) <
        0)
        log_info("GPUs are not measured: %s", err.text);
}

/* --- samples ------------------------------------------------------------------------ */

static void send_sample(struct sampler *s)
{
    struct machine now;
    uint32_t n = s->a->share.nlocal;
    OWNED struct rank_use *ranks = xcalloc(n + 1, sizeof *ranks);
    measure_machine(&now);
    for (uint32_t i = 0; i < n; i++) {
        pid_t pid = ranks_pid(s->a->ranks, i);
        if (pid > 0)
            measure_rank(pid, &ranks[i]);
    }
    uint64_t busy = now.busy - s->before.busy, total = now.total - s->before.total;
    agent_send(s->a, MSG(sample, .at_ns = now_ns(),
                         .permille = total ? (uint32_t)(busy * 1000 / total) : 0,
                         .used_kib = now.used_kib, .total_kib = now.total_kib,
                         .ngpus = (uint32_t)s->gpus.n, .gpus = s->gpus.list, .nranks = n,
                         .ranks = ranks));
    s->before = now;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    send_sample(arg);
}

static int handle_watch(void *state, const struct frame *f, struct ddp_err *err)
{
    struct sampler *s = state;
    const struct msg_watch *m = f->m;
    if (!s->timer)
        s->timer = loop_event(s->a->loop, -1, EV_PERSIST, on_timer, s);
    if (!m->on) {
        event_del(s->timer);
        own_program_kill(&s->gpus.program);
        return 0;
    }
    loop_arm(s->timer, 1000);
    start_gpus(s);
    send_sample(s);
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static void on_init(void *state)
{
    struct sampler *s = state;
    s->gpus = (struct gpus){
        .program = {.reap = s->a->reap, .fd = -1, .out = on_gpus, .arg = &s->gpus},
        .text = evbuffer_new()};
}

static void on_fini(void *state)
{
    struct sampler *s = state;
    loop_free(s->timer);
    own_program_kill(&s->gpus.program);
    evbuffer_free(s->gpus.text);
}

static void on_stop(void *state, bool again)
{
    if (!again)
        own_program_kill(&((struct sampler *)state)->gpus.program);
}

static bool on_spares(const void *state, pid_t pid)
{
    return own_program_is(&((const struct sampler *)state)->gpus.program, pid);
}

static const struct agent_message messages[] = {{MSG_WATCH, handle_watch}, {0}};

const struct agent_plugin observe_agent = {
    .name = "observe",
    .state_size = sizeof(struct sampler),
    .init = on_init,
    .fini = on_fini,
    .stop = on_stop,
    .spares = on_spares,
    .messages = messages,
};
