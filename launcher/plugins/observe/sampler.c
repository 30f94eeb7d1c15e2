/* launcher/plugins/observe/sampler.c - measures a node once a second, from WATCH on
 *
 * GPUs are read by ddprun-gpus, as NVML may block: the numbers of one second are sent
 * with the next sample.
 *
 * Descendants are those that /proc/PID/task/PID/children lists: started by the main
 * thread of their parent, as data loaders and shells do. No scan of all processes.
 */
#include "common/ancestry.h"
#include "common/duration.h"
#include "common/installed.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "launcher/agent/plugin.h"
#include "launcher/agent/ranks.h"
#include "launcher/plugins/plugins.h"
#include "launcher/transport/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* processes of one rank that are counted; GPUs of the node; bytes of a line about them */
enum { TREE_MAX = 256, GPUS_MAX = 32, LINE_MAX_SIZE = 2048 };

/* ddprun-gpus --use */
struct gpus {
    pid_t pid; /* 0: none */
    int fd;    /* owned, with `readable`: its output */
    struct event *readable;
    char line[LINE_MAX_SIZE]; /* what has been read of the next one */
    size_t size;
    struct gpu_use gpus[GPUS_MAX]; /* of the last one */
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

/* --- GPUs --------------------------------------------------------------------------- */

static void stop_gpus(struct sampler *s)
{
    struct gpus *g = &s->gpus;
    if (g->pid > 0) {
        reap_forget(s->a->reap, g->pid);
        kill(g->pid, SIGKILL);
    }
    g->pid = 0;
    if (g->readable)
        loop_close_fd(&g->readable, &g->fd);
    g->size = 0;
}

static void on_gpus_ended(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                          void *arg)
{
    struct sampler *s = arg;
    s->gpus.pid = 0;
    agent_check(s->a);
}

static void read_line(struct gpus *g)
{
    int length;
    unsigned percent, used, total;
    g->n = 0;
    for (const char *p = g->line; g->n < GPUS_MAX && sscanf(p, "%u:%u:%u %n", &percent,
                                                            &used, &total, &length) == 3;
         p += length)
        g->gpus[g->n++] =
            (struct gpu_use){.percent = percent, .used_mib = used, .total_mib = total};
}

static void on_gpus_readable(evutil_socket_t fd, short what, void *arg)
{
    struct sampler *s = arg;
    struct gpus *g = &s->gpus;
    ssize_t got = read(fd, g->line + g->size, sizeof g->line - 1 - g->size);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    g->size += got > 0 ? (size_t)got : 0;
    g->line[g->size] = '\0';
    for (char *end; (end = strchr(g->line, '\n'));) {
        size_t size = (size_t)(end + 1 - g->line);
        *end = '\0';
        read_line(g);
        g->size -= size;
        memmove(g->line, end + 1, g->size + 1);
    }
    if (got <= 0 || g->size == sizeof g->line - 1)
        stop_gpus(s);
}

static void start_gpus(struct sampler *s)
{
    struct gpus *g = &s->gpus;
    char *path = installed_file(INSTALLED_PROGRAM, "ddprun-gpus", X_OK);
    int ends[2];
    enum child_step step;
    if (g->pid == 0 && path && pipe2(ends, O_CLOEXEC) == 0) {
        const char *argv[] = {"ddprun-gpus", "--use", NULL};
        const struct child_spec spec = {.path = path,
                                        .argv = (char *const *)(uintptr_t)argv,
                                        .env = environ,
                                        .in = -1,
                                        .out = ends[1],
                                        .err = -1};
        stop_gpus(s); /* the output of one that has ended */
        pid_t pid = child_spawn(&spec, &step);
        close(ends[1]);
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        g->fd = ends[0];
        g->readable =
            loop_watch(s->a->loop, g->fd, EV_READ | EV_PERSIST, on_gpus_readable, s);
        if (pid > 0)
            reap_watch(s->a->reap, g->pid = pid, on_gpus_ended, s);
    }
    free(path);
}

/* --- samples ------------------------------------------------------------------------ */

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
        stop_gpus(s);
        return 0;
    }
    loop_arm(s->timer, 1000);
    start_gpus(s);
    send_sample(s);
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static void on_fini(void *state)
{
    struct sampler *s = state;
    loop_free(s->timer);
    stop_gpus(s);
}

static void on_stop(void *state, bool again)
{
    if (!again)
        stop_gpus(state);
}

static bool on_spares(const void *state, pid_t pid)
{
    const struct gpus *g = &((const struct sampler *)state)->gpus;
    return pid ? pid == g->pid : g->pid > 0;
}

static const struct agent_message messages[] = {{MSG_WATCH, handle_watch}, {0}};

const struct agent_plugin observe_agent = {
    .name = "observe",
    .state_size = sizeof(struct sampler),
    .fini = on_fini,
    .stop = on_stop,
    .spares = on_spares,
    .messages = messages,
};
