/* launcher/plugins/observe/view/prometheus.c - the status as metrics, in Prometheus' text
 * format
 *
 * Names are OpenTelemetry's, in the spelling of its exporter for Prometheus
 * (process.cpu.time: process_cpu_time_seconds_total), where it has one. doc/watch.md
 * lists them.
 */
#include "launcher/plugins/observe/view/view.h"

#include "common/json.h"
#include "common/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void head(struct evbuffer *out, const char *name, const char *type,
                 const char *help)
{
    evbuffer_add_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: quotes, backslashes and newlines are escaped. */
static void label(struct evbuffer *out, const char *name, const char *value)
{
    evbuffer_add_printf(out, "%s=\"", name);
    for (const char *p = value; *p; p++) {
        if (*p == '"' || *p == '\\')
            evbuffer_add_printf(out, "\\%c", *p);
        else if (*p == '\n')
            evbuffer_add_printf(out, "\\n");
        else
            evbuffer_add(out, p, 1);
    }
    evbuffer_add_printf(out, "\"");
}

static const char *host_name(const json_t *status, size_t rank)
{
    const json_t *of = json_array_get(json_object_get(status, "host"), rank);
    return text_or(
        json_array_get(json_object_get(status, "hosts"), (size_t)json_integer_value(of)),
        "host", "");
}

static void sample(struct evbuffer *out, double value)
{
    if (isfinite(value) && value == floor(value) && fabs(value) < 1e15)
        evbuffer_add_printf(out, "} %.0f\n", value);
    else
        evbuffer_add_printf(out, isnan(value) ? "} NaN\n" : "} %.9g\n", value);
}

/* One line per rank, from a list in the status. */
static const struct {
    const char *list, *name, *type, *help;
    double scale;
} of_ranks[] = {
    {"cpu_s", "process_cpu_time_seconds_total", "counter",
     "CPU time of a rank and its children", 1},
    {"rss", "process_memory_usage_bytes", "gauge",
     "Resident memory of a rank and its children", 1024},
    {"out", "ddprun_output_bytes_total", "counter", "Output of a rank", 1},
    {"quiet", "ddprun_output_age_seconds", "gauge", "Time since a rank's last output", 1},
    {"collectives", "ddprun_collectives_total", "counter",
     "Collectives that a rank has entered", 1},
    {"lag", "ddprun_collective_lag_seconds", "gauge",
     "How much later than the median a rank came to the last collectives", 1},
    {"straggles", "ddprun_straggler", "gauge", "1: a rank comes late repeatedly", 1},
};

static void write_ranks(const json_t *status, struct evbuffer *out)
{
    for (size_t m = 0; m < ARRAY_LEN(of_ranks); m++) {
        const json_t *list = json_object_get(status, of_ranks[m].list), *v;
        size_t r;
        bool ages = strcmp(of_ranks[m].list, "quiet") == 0; /* -1: no output yet */
        head(out, of_ranks[m].name, of_ranks[m].type, of_ranks[m].help);
        json_array_foreach (list, r, v) {
            if (!json_is_number(v) || (ages && json_number_value(v) < 0))
                continue;
            evbuffer_add_printf(out, "%s{rank=\"%zu\",", of_ranks[m].name, r);
            label(out, "host", host_name(status, r));
            sample(out, json_number_value(v) * of_ranks[m].scale);
        }
    }
}

/* The same, from a list of each host, and from one of each of its GPUs. */
static const struct {
    const char *list, *name, *help;
    size_t at;
    double scale;
} of_hosts[] = {
    {"mem", "system_memory_usage_bytes", "Memory in use on a host", 0, 1024},
    {"mem", "system_memory_limit_bytes", "Memory of a host", 1, 1024},
    {"gpus", "hw_gpu_utilization_ratio", "Utilization of a GPU", 0, 0.01},
    {"gpus", "hw_gpu_memory_usage_bytes", "Memory in use on a GPU", 1, 1 << 20},
    {"gpus", "hw_gpu_memory_limit_bytes", "Memory of a GPU", 2, 1 << 20},
};

/* Those that are measured, by name. Instances of ddprun on one machine (doc/peers.md)
 * have the same name, and no series may occur twice: one of them counts. */
static json_t *hosts_by_name(const json_t *status)
{
    json_t *by_name = json_object(), *h;
    size_t i;
    json_array_foreach (json_object_get(status, "hosts"), i, h) {
        if (json_object_get(h, "mem"))
            json_object_set(by_name, text_or(h, "host", ""), h);
    }
    return by_name;
}

static void write_hosts(const json_t *status, struct evbuffer *out)
{
    json_auto_t *hosts = hosts_by_name(status);
    json_t *h;
    const char *name;
    for (size_t m = 0; m < ARRAY_LEN(of_hosts); m++) {
        bool gpus = strcmp(of_hosts[m].list, "gpus") == 0;
        head(out, of_hosts[m].name, "gauge", of_hosts[m].help);
        json_object_foreach (hosts, name, h) {
            const json_t *list = json_object_get(h, of_hosts[m].list);
            size_t n = gpus ? json_array_size(list) : 1;
            for (size_t i = 0; i < n; i++) {
                const json_t *of = gpus ? json_array_get(list, i) : list;
                evbuffer_add_printf(out, "%s{", of_hosts[m].name);
                if (gpus)
                    evbuffer_add_printf(out, "gpu=\"%zu\",", i);
                label(out, "host", name);
                sample(out, json_number_value(json_array_get(of, of_hosts[m].at)) *
                                of_hosts[m].scale);
            }
        }
    }
}

/* Letters of the status (status.c) per state; all others run. */
static const struct {
    const char *name, *letters;
} states[] = {{"not_started", "n"}, {"exited", "x"},  {"failed", "f"},
              {"stopped", "k"},     {"unknown", "u"}, {"running", NULL}};

static size_t count_state(const char *all, const char *letters)
{
    size_t n = 0;
    for (const char *p = all; *p; p++)
        n += letters ? strchr(letters, *p) != NULL : strchr("nxfku", *p) == NULL;
    return n;
}

static void write_job(const json_t *status, struct evbuffer *out)
{
    const char *all = text_or(status, "states", "");
    double t = number_of(status, "t");
    head(out, "ddprun_job_info", "gauge", "The job");
    evbuffer_add_printf(out, "ddprun_job_info{");
    label(out, "job", text_or(status, "job", ""));
    evbuffer_add_printf(out, ",");
    label(out, "command", text_or(status, "command", ""));
    evbuffer_add_printf(out, ",");
    label(out, "state", text_or(status, "state", ""));
    if (getenv("SLURM_JOB_ID")) {
        evbuffer_add_printf(out, ",");
        label(out, "slurm_job_id", getenv("SLURM_JOB_ID"));
    }
    sample(out, 1);
    head(out, "process_uptime_seconds", "gauge", "Time since ddprun was started");
    evbuffer_add_printf(out, "process_uptime_seconds %.3f\n", t);
    head(out, "ddprun_effective_time_ratio", "gauge",
         "Share of the time since the start in which all ranks ran (ETTR)");
    evbuffer_add_printf(out, "ddprun_effective_time_ratio %.4f\n",
                        t > 0 ? number_of(status, "whole_s") / t : 0);
    head(out, "ddprun_restarts_total", "counter", "Restarts of all ranks");
    evbuffer_add_printf(out, "ddprun_restarts_total %lld\n",
                        int_of(status, "attempt") - 1);
    head(out, "ddprun_recovery_seconds_total", "counter",
         "Time from failures until all ranks ran again");
    evbuffer_add_printf(out, "ddprun_recovery_seconds_total %.3f\n",
                        number_of(status, "recover_s"));
    head(out, "ddprun_ranks", "gauge", "Ranks by state");
    for (size_t s = 0; s < ARRAY_LEN(states); s++)
        evbuffer_add_printf(out, "ddprun_ranks{state=\"%s\"} %zu\n", states[s].name,
                            count_state(all, states[s].letters));
    head(out, "ddprun_spawned_jobs", "gauge", "Jobs that ranks have spawned, by state");
    evbuffer_add_printf(out,
                        "ddprun_spawned_jobs{state=\"running\"} %lld\n"
                        "ddprun_spawned_jobs{state=\"ended\"} %lld\n",
                        int_of(status, "spawned_running"),
                        int_of(status, "spawned_ended"));
}

static void write_series(const struct view *v, struct evbuffer *out)
{
    const struct point *p;
    const char *name;
    size_t n;
    head(out, "ddprun_metric", "gauge", "The last value that the program has printed");
    for (size_t i = 0; series_get(v->series, i, &name, &p, &n); i++) {
        evbuffer_add_printf(out, "ddprun_metric{");
        label(out, "name", name);
        sample(out, p[n - 1].value);
    }
}

void prometheus_write(const struct view *v, struct evbuffer *out)
{
    json_auto_t *status = v->status ? json_loadb(v->status, v->nstatus, 0, NULL) : NULL;
    if (!status)
        return;
    write_job(status, out);
    write_ranks(status, out);
    write_hosts(status, out);
    write_series(v, out);
}
