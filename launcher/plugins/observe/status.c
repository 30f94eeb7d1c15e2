/* launcher/plugins/observe/status.c - see status.h */
#include "launcher/plugins/observe/status.h"

#include "common/apps.h"
#include "common/duration.h"
#include "common/mem.h"
#include "launcher/job/events.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAST_MAX = 160 }; /* bytes of a rank's last line */

static void put_text(struct evbuffer *out, const char *name, const char *text)
{
    json_auto_t *value = event_text(text);
    OWNED char *quoted = json_dumps(value, JSON_ENCODE_ANY);
    if (name)
        evbuffer_add_printf(out, ",\"%s\":", name);
    evbuffer_add_printf(out, "%s", quoted);
}

static const char *state_name(const struct job *j)
{
    static const char *const names[] = {[JOB_NEW] = "new",
                                        [JOB_GATHERING] = "starting",
                                        [JOB_PREPARING] = "starting",
                                        [JOB_RUNNING] = "running",
                                        [JOB_TERMINATING] = "stopping",
                                        [JOB_DRAINING] = "ending",
                                        [JOB_LEAVING] = "ending",
                                        [JOB_FLUSHING] = "ending",
                                        [JOB_DONE] = "ended"};
    return names[j->state];
}

/* 'n' not started, 'r' runs (or what the kernel says: R, S, D, T, Z), 'x' exited, 'f'
 * failed, 'k' stopped by us, 'u' unknown. */
static char rank_state(const struct job *j, int rank, const struct rank_usage *used)
{
    const struct job_rank *r = &j->ranks[rank];
    if (!r->exited)
        return j->state < JOB_RUNNING || j->spawned_ns == 0 ? 'n'
               : used && used[rank].state                   ? used[rank].state
                                                            : 'r';
    return r->end_unknown || r->left_behind ? 'u'
           : r->failed                      ? 'f'
           : r->status                      ? 'k'
                                            : 'x';
}

static void put_gpus(const struct node_usage *used, struct evbuffer *out)
{
    evbuffer_add_printf(out, ",\"gpus\":[");
    for (size_t i = 0; i < used->ngpus; i++)
        evbuffer_add_printf(out, "%s[%u,%u,%u]", i ? "," : "", used->gpus[i].percent,
                            used->gpus[i].used_mib, used->gpus[i].total_mib);
    evbuffer_add_printf(out, "]");
}

static void put_hosts(const struct job *j, const struct node_usage *nodes,
                      struct evbuffer *out)
{
    size_t all = j->alloc->nnodes;
    while (all > 0 && !j->nodes[all - 1].host->name[0])
        all--; /* room for hosts that may come (job/hosts.c) */
    evbuffer_add_printf(out, ",\"hosts\":[");
    for (size_t i = 0; i < all; i++) {
        const struct job_node *n = &j->nodes[i];
        const char *state = n->lost      ? "lost"
                            : n->trouble ? "failed"
                            : n->joined  ? "up"
                                         : "starting";
        evbuffer_add_printf(out, "%s{\"state\":\"%s\"", i ? "," : "", state);
        put_text(out, "host", n->host->name);
        if (nodes && nodes[i].at_ns) {
            evbuffer_add_printf(out, ",\"cpu\":%.1f,\"mem\":[%llu,%llu]", nodes[i].cpu,
                                (unsigned long long)nodes[i].used_kib,
                                (unsigned long long)nodes[i].total_kib);
            put_gpus(&nodes[i], out);
        }
        evbuffer_add_printf(out, "}");
    }
    evbuffer_add_printf(out, "]");
}

/* --- one list per quantity ------------------------------------------------------------
 */

struct source {
    const struct job *j;
    const struct rank_usage *used; /* NULL: not measured */
    struct calls *calls;           /* NULL: not wanted */
    int64_t now_ms;
};

static void put_host(const struct source *s, int r, struct evbuffer *out)
{
    evbuffer_add_printf(out, "%td", plan_host(s->j->plan, r) - s->j->alloc->nodes);
}

static void put_cpu(const struct source *s, int r, struct evbuffer *out)
{
    evbuffer_add_printf(out, "%.0f", s->used[r].cpu);
}

static void put_cpu_s(const struct source *s, int r, struct evbuffer *out)
{
    evbuffer_add_printf(out, "%.3f", (double)s->used[r].cpu_ms / 1e3);
}

static void put_rss(const struct source *s, int r, struct evbuffer *out)
{
    evbuffer_add_printf(out, "%llu", (unsigned long long)s->used[r].rss_kib);
}

static void put_bytes(const struct source *s, int r, struct evbuffer *out)
{
    struct output_seen seen = output_seen(s->j->output, r);
    evbuffer_add_printf(out, "%llu", (unsigned long long)seen.bytes);
}

static void put_quiet(const struct source *s, int r, struct evbuffer *out)
{
    struct output_seen seen = output_seen(s->j->output, r);
    evbuffer_add_printf(out, "%.1f",
                        seen.last_ms ? (double)(s->now_ms - seen.last_ms) / 1e3 : -1);
}

static void put_last(const struct source *s, int r, struct evbuffer *out)
{
    char line[LAST_MAX];
    output_last_line(s->j->output, r, line, sizeof line);
    put_text(out, NULL, line);
}

static void put_collectives(const struct source *s, int r, struct evbuffer *out)
{
    evbuffer_add_printf(out, "%llu", (unsigned long long)s->j->ranks[r].collectives);
}

static void put_lag(const struct source *s, int r, struct evbuffer *out)
{
    evbuffer_add_printf(out, "%.6f", (double)s->j->ranks[r].lag_ns / 1e9);
}

static void put_straggles(const struct source *s, int r, struct evbuffer *out)
{
    evbuffer_add_printf(out, "%d", s->j->ranks[r].straggles);
}

static void put_call(const struct source *s, int r, struct evbuffer *out)
{
    if (!calls_put_rank(s->calls, r, out))
        evbuffer_add(out, "null", 4);
}

static bool is_looked_at(const struct source *s, int r)
{
    return s->calls != NULL;
}

/* Is it known at all, and for this rank? */
static bool is_used(const struct source *s, int r)
{
    return r < 0 ? s->used != NULL : s->used[r].cpu_ms > 0 || s->used[r].rss_kib > 0;
}

static bool has_entered(const struct source *s, int r)
{
    return r < 0 ? s->j->opts->stragglers > 0 : s->j->ranks[r].collectives > 0;
}

static const struct {
    const char *name;
    bool (*known)(const struct source *s, int rank); /* NULL: always */
    void (*put)(const struct source *s, int rank, struct evbuffer *out);
} lists[] = {
    {"host", NULL, put_host},         {"cpu", is_used, put_cpu},
    {"cpu_s", is_used, put_cpu_s},    {"rss", is_used, put_rss},
    {"out", NULL, put_bytes},         {"quiet", NULL, put_quiet},
    {"last", NULL, put_last},         {"collectives", has_entered, put_collectives},
    {"lag", has_entered, put_lag},    {"straggles", has_entered, put_straggles},
    {"call", is_looked_at, put_call},
};

static void put_ranks(const struct source *s, struct evbuffer *out)
{
    int n = s->j->plan->nranks;
    OWNED char *states = xcalloc((size_t)n + 1, 1);
    for (int r = 0; r < n; r++)
        states[r] = rank_state(s->j, r, s->used);
    evbuffer_add_printf(out, ",\"states\":\"%s\"", states);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        if (lists[i].known && !lists[i].known(s, -1))
            continue;
        evbuffer_add_printf(out, ",\"%s\":[", lists[i].name);
        for (int r = 0; r < n; r++) {
            if (r > 0)
                evbuffer_add(out, ",", 1);
            if (lists[i].known && !lists[i].known(s, r))
                evbuffer_add(out, "null", 4);
            else
                lists[i].put(s, r, out);
        }
        evbuffer_add(out, "]", 1);
    }
}

void status_command(const struct job *j, struct strv *words)
{
    for (size_t i = 0; i <= j->job.apps.n; i++) {
        struct app app;
        apps_get(&j->job.apps, i, j->job.argv.n, &app);
        if (i > 0)
            strv_push(words, ":");
        for (size_t w = 0; w < app.nwords; w++)
            strv_push(words, j->job.argv.v[app.word + w]);
    }
}

void status_write(const struct job *j, int64_t whole_ns, int64_t recover_ns,
                  const struct rank_usage *ranks, const struct node_usage *nodes,
                  struct calls *calls, struct evbuffer *out)
{
    struct source s = {.j = j, .used = ranks, .calls = calls, .now_ms = now_ms()};
    SCOPED(strv_finish) struct strv words = {0};
    status_command(j, &words);
    OWNED char *command = shell_join(words.v);
    evbuffer_add_printf(
        out,
        "{\"is\":\"status\",\"job\":\"%s\",\"pid\":%d,\"state\":\"%s\","
        "\"t\":%.3f,\"whole_s\":%.3f,\"recover_s\":%.3f,\"attempt\":%d,\"attempts\":%d,"
        "\"spawned_running\":%u,\"spawned_ended\":%u",
        j->job.id, (int)getpid(), state_name(j), (double)(now_ns() - j->created_ns) / 1e9,
        (double)whole_ns / 1e9, (double)recover_ns / 1e9, j->restart.attempt + 1,
        restart_attempts(&j->restart), j->spawned.running, j->spawned.ended);
    put_text(out, "command", command);
    put_text(out, "failure", j->cause.kind != CAUSE_NONE ? j->cause.text : NULL);
    put_hosts(j, nodes, out);
    if (j->plan && j->output)
        put_ranks(&s, out);
    if (calls) {
        evbuffer_add_printf(out, ",\"waits\":");
        calls_put_waits(calls, out);
    }
    evbuffer_add_printf(out, "}\n");
}
