/* launcher/plugins/observe/sampler.c - measures a node once a second, from WATCH on
 *
 * GPUs are read in a thread: the numbers of one second are sent with the next sample.
 *
 * Descendants are those that /proc/PID/task/PID/children lists: started by the main
 * thread of their parent, as data loaders and shells do. No scan of all processes.
 */
#include "common/ancestry.h"
#include "common/duration.h"
#include "common/mem.h"
#include "common/nvml.h"
#include "common/offload.h"
#include "common/read_start.h"
#include "launcher/agent/plugin.h"
#include "launcher/agent/ranks.h"
#include "launcher/plugins/plugins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* processes of one rank that are counted; GPUs of the node */
enum { TREE_MAX = 256, GPUS_MAX = 32 };

struct gpus {
    struct gpu_use gpus[GPUS_MAX];
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
    struct offload *reading; /* owned: of the GPUs; NULL: none */
    struct gpus gpus;        /* of the last reading */
};

/* --- what is in use ----------------------------------------------------------------- */

/* Adds to `u`; returns the state. */
static char add_process(pid_t pid, struct rank_use *u)
{
    char text[1024], state = 0;
    unsigned long long user = 0, system = 0;
    long long child_user = 0, child_system = 0, pages = 0;
    const char *fields = ancestry_fields(pid, text, sizeof text);
    if (!fields ||
        sscanf(fields,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld "
               "%*d %*d %*d %*d %*u %*u %lld",
               &state, &user, &system, &child_user, &child_system, &pages) != 6)
        return 0;
    u->cpu_ms += (user + system + (unsigned long long)(child_user + child_system)) *
                 1000 / (unsigned long long)sysconf(_SC_CLK_TCK);
    u->rss_kib += (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    return state;
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

/* All GPUs that NVML shows; none without its library. Blocks, at the first call for a
 * second, and without limit on a broken GPU. */
static void read_gpus(void *copy)
{
    unsigned n = 0, percent[2];
    unsigned long long bytes[3];
    void *device;
    struct gpus *g = copy;
    const struct nvml *nvml = nvml_load();
    g->n = 0;
    if (!nvml || nvml->count(&n) != 0)
        return;
    n = n < GPUS_MAX ? n : GPUS_MAX;
    for (unsigned i = 0; i < n; i++) {
        g->gpus[i] = (struct gpu_use){0};
        if (nvml->get(i, &device) != 0)
            continue;
        if (nvml->load(device, percent) == 0)
            g->gpus[i].percent = percent[0];
        if (nvml->memory(device, bytes) == 0) {
            g->gpus[i].total_mib = (uint32_t)(bytes[0] >> 20);
            g->gpus[i].used_mib = (uint32_t)(bytes[2] >> 20);
        }
    }
    g->n = n;
}

/* --- samples ------------------------------------------------------------------------ */

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
    struct machine now;
    uint32_t n = s->a->share.nlocal;
    struct rank_use *ranks = xcalloc(n + 1, sizeof *ranks);
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
}

static const struct agent_message messages[] = {{MSG_WATCH, handle_watch}, {0}};

const struct agent_plugin observe_agent = {
    .name = "observe",
    .state_size = sizeof(struct sampler),
    .fini = on_fini,
    .messages = messages,
};
