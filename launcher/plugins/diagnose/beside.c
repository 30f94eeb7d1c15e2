/* launcher/plugins/diagnose/beside.c - see beside.h */
#include "launcher/plugins/diagnose/beside.h"

#include "common/affinity.h"
#include "common/ancestry.h"
#include "common/duration.h"
#include "common/idset.h"
#include "common/mem.h"
#include "launcher/plugins/diagnose/proc.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ms: on a busy host, with LOADED processes for each CPU, it takes longer to tell whether
 * the rank gets its share */
enum { MEASURE_MS = 200, LOADED_MS = 2000, LOADED = 2 };
enum { TREE_MAX = 256, PIDS_MAX = 1 << 16, TOP_LEAST = 10 };

/* --- the rank ----------------------------------------------------------------------- */

struct usage {
    double ran_ns, waited_ns;
    double faults; /* pages that were read from a file or from swap */
};

static void add_threads(pid_t pid, struct usage *u)
{
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    SCOPED(close_folder) DIR *dir = opendir(path);
    for (struct dirent *d; dir && (d = readdir(dir));) {
        unsigned long long ran = 0, waited = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", (int)pid, d->d_name);
        SCOPED(close_file)
        FILE *f = isdigit((unsigned char)*d->d_name) ? fopen(path, "re") : NULL;
        if (f && fgets(text, sizeof text, f) &&
            sscanf(text, "%llu %llu", &ran, &waited) == 2) {
            u->ran_ns += (double)ran;
            u->waited_ns += (double)waited;
        }
    }
}

static struct usage usage_of(const pid_t *pids, size_t n)
{
    struct usage u = {0};
    struct ancestry_use p;
    for (size_t i = 0; i < n; i++) {
        add_threads(pids[i], &u);
        if (ancestry_use(pids[i], &p))
            u.faults += (double)p.major_faults;
    }
    return u;
}

/* --- the host ----------------------------------------------------------------------- */

/* Ticks of all CPUs; `stolen`: in which the hypervisor ran something else. */
struct machine {
    double all, stolen;
};

static struct machine machine_now(void)
{
    struct machine m = {0};
    double t[8] = {0}; /* user nice system idle iowait irq softirq steal */
    SCOPED(close_file) FILE *f = fopen("/proc/stat", "re");
    if (f && fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3],
                    &t[4], &t[5], &t[6], &t[7]) == 8)
        m.stolen = t[7];
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        m.all += t[i];
    return m;
}

static int stolen_percent(struct machine from, struct machine to)
{
    double all = to.all - from.all, stolen = to.stolen - from.stolen;
    return all > 0 && stolen > 0 ? (int)(stolen / all * 100) : 0;
}

/* --- others ------------------------------------------------------------------------- */

struct other {
    pid_t pid;
    unsigned long ticks;
    int cpu; /* it has run there last */
};

static bool read_other(pid_t pid, struct other *o)
{
    struct ancestry_use u;
    bool runs = ancestry_use(pid, &u);
    if (runs)
        *o = (struct other){pid, u.user + u.system, u.cpu};
    return runs;
}

static size_t read_others(struct other *others)
{
    size_t n = 0;
    SCOPED(close_folder) DIR *dir = opendir("/proc");
    for (struct dirent *d; dir && n < PIDS_MAX && (d = readdir(dir));) {
        if (isdigit((unsigned char)*d->d_name))
            n += read_other((pid_t)atoi(d->d_name), &others[n]);
    }
    return n;
}

static bool is_of(pid_t pid, const pid_t *pids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (pids[i] == pid)
            return true;
    }
    return pid == getpid();
}

/* The one that has used most CPU time since; ticks: how much. */
static struct other top_of(const struct other *before, size_t n,
                           const struct affinity *cpus, const pid_t *own, size_t nown)
{
    struct other top = {0}, now;
    for (size_t i = 0; i < n; i++) {
        if (is_of(before[i].pid, own, nown) || !read_other(before[i].pid, &now) ||
            now.ticks < before[i].ticks || !affinity_has(cpus, now.cpu))
            continue;
        now.ticks -= before[i].ticks;
        top = now.ticks > top.ticks ? now : top;
    }
    return top;
}

static json_t *describe_top(struct other top, double passed_s,
                            const struct collect_rank *ranks, size_t n)
{
    double percent = (double)top.ticks / (double)sysconf(_SC_CLK_TCK) / passed_s * 100;
    json_auto_t *o = json_object();
    json_t *out;
    if (percent < TOP_LEAST || !proc_describe(top.pid, o))
        return NULL;
    json_t *program = json_object_get(o, "program");
    out = json_pack("{s:i, s:O, s:i}", "pid", (int)top.pid, "program",
                    program ? program : json_object_get(o, "state"), "cpu_percent",
                    (int)percent);
    for (size_t i = 1; i < n; i++) {
        if (ancestry_leads(top.pid, ranks[i].pid))
            json_object_set_new(out, "rank", json_integer(ranks[i].rank));
    }
    return out;
}

/* --- all ---------------------------------------------------------------------------- */

static char *cpus_text(const struct affinity *cpus)
{
    SCOPED(idset_finish) struct idset set = {0};
    for (int i = 0; i < AFFINITY_CPUS; i++) {
        if (affinity_has(cpus, i))
            idset_add(&set, i, i);
    }
    return idset_text(&set);
}

json_t *beside(const struct collect_rank *ranks, size_t n)
{
    pid_t own[TREE_MAX];
    struct affinity cpus;
    double load = 0;
    size_t nown = proc_tree(ranks[0].pid, own, TREE_MAX);
    int ncpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (affinity_get(own[nown - 1], &cpus) < 0)
        return NULL; /* it has ended */
    OWNED struct other *before = xcalloc(PIDS_MAX, sizeof *before);
    size_t nbefore = read_others(before);
    struct usage first = usage_of(own, nown);
    struct machine machine = machine_now();
    int64_t began_ns = now_ns();
    if (getloadavg(&load, 1) != 1)
        load = 0;
    bool busy = load >= LOADED * (double)ncpus;
    usleep((busy ? LOADED_MS : MEASURE_MS) * 1000);
    double passed_ns = (double)(now_ns() - began_ns);
    struct usage then = usage_of(own, nown);
    json_t *top = describe_top(top_of(before, nbefore, &cpus, own, nown), passed_ns / 1e9,
                               ranks, n);
    if (then.ran_ns < first.ran_ns || then.waited_ns < first.waited_ns ||
        then.faults < first.faults) {
        json_decref(top);
        return NULL; /* processes have ended */
    }
    OWNED char *text = cpus_text(&cpus);
    json_t *out = json_pack(
        "{s:s, s:f, s:b, s:f, s:i, s:i, s:i, s:i}", "cpus", text, "load", load, "busy",
        busy, "measured_s", passed_ns / 1e9, "cpu_percent",
        (int)((then.ran_ns - first.ran_ns) / passed_ns * 100), "waits_percent",
        (int)((then.waited_ns - first.waited_ns) / passed_ns * 100), "stolen_percent",
        stolen_percent(machine, machine_now()), "faults_per_s",
        (int)((then.faults - first.faults) / (passed_ns / 1e9)));
    if (top)
        json_object_set_new(out, "top", top);
    return out;
}
