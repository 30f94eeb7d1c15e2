/* launcher/plugins/observe/observe.c - events of a job's life (doc/events.md)
 *
 * Causes, restarts and lines for the user are events of the core (job/report.c).
 */
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/signame.h"
#include "launcher/control/control.h"
#include "launcher/job/events.h"
#include "launcher/plugins/observe/event_file.h"
#include "launcher/plugins/observe/status.h"
#include "launcher/plugins/observe/viewer.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WATCH_MS = 5000 }; /* agents measure so long after the last request */

struct observe {
    struct job *j;            /* borrowed */
    struct event_file *file;  /* owned; NULL: no --events */
    struct viewer *viewer;    /* owned; NULL: no --ui, no --metrics */
    struct rank_usage *ranks; /* owned, as j->ranks; NULL: no request yet */
    struct node_usage *nodes; /* owned, as j->nodes */
    struct calls *calls;      /* owned */
    int64_t watched_ms; /* the last request for the status; 0: agents do not measure */
    int64_t whole_ns;   /* time in which all ranks ran, until the last failure */
    int64_t whole_since_ns; /* 0: not all of them run */
    int64_t heard_ns;       /* the last message of the node that was lost last */
    int64_t failed_ns;      /* the failure from which all ranks have not recovered; 0 */
    int64_t told_ns;        /* ddprun knew of it */
    int64_t recover_ns, longest_ns; /* from failures to all ranks: in all, and at most */
    int recoveries;
    bool planned;  /* the plan was reported */
    bool *started; /* owned: ranks whose start was reported; NULL: none */
};

/* --- the job and its plan ----------------------------------------------------------- */

static json_t *words(const struct strv *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++)
        json_array_append_new(list, event_text(v->v[i]));
    return list;
}

static void emit_job(struct observe *o)
{
    struct job *j = o->j;
    char host[256] = "";
    SCOPED(strv_finish) struct strv command = {0};
    status_command(j, &command);
    gethostname(host, sizeof host - 1);
    event_emit(j, "job", "{s:s, s:o, s:o, s:s, s:i, s:i}", "version", DDPRUN_VERSION,
               "command", words(&command), "directory", event_text(j->job.wdir), "host",
               host, "pid", (int)getpid(), "attempts", restart_attempts(&j->restart));
}

static json_t *plan_node(const struct plan_node *n)
{
    json_t *ranks = json_array();
    for (int i = 0; i < n->nlocal; i++)
        json_array_append_new(ranks, json_integer(n->ranks[i]));
    return json_pack("{s:o, s:o}", "host", event_text(n->host->name), "ranks", ranks);
}

/* As soon as there is one. */
static void emit_plan(void *state)
{
    struct observe *o = state;
    struct job *j = o->j;
    if (o->planned || !j->plan || !events_wanted(j))
        return;
    json_t *nodes = json_array();
    for (int p = 0; p < j->plan->nnodes; p++)
        json_array_append_new(nodes, plan_node(&j->plan->nodes[p]));
    event_emit(j, "plan", "{s:i, s:i, s:s, s:o}", "ranks", j->plan->nranks, "hosts",
               j->plan->nnodes, "source", j->alloc->source, "nodes", nodes);
    o->planned = true;
}

/* --- nodes -------------------------------------------------------------------------- */

static void on_node_joined(void *state, unsigned node)
{
    struct observe *o = state;
    const struct job_node *n = &o->j->nodes[node];
    event_emit(o->j, "node", "{s:i, s:o, s:s, s:i, s:i}", "node", (int)node, "host",
               event_text(n->host->name), "state", "joined", "cpus", (int)n->hello.ncpus,
               "gpus", (int)n->hello.ngpus);
}

static void on_node_lost(void *state, unsigned node, const char *why)
{
    struct observe *o = state;
    o->heard_ns = o->j->nodes[node].heard_ms * 1000000;
    if (o->nodes)
        o->nodes[node].at_ns = 0; /* another host may come in its place */
    event_emit(o->j, "host_lost", "{s:i, s:o, s:o}", "node", (int)node, "host",
               event_text(o->j->nodes[node].host->name), "why", event_text(why));
}

/* --- ranks -------------------------------------------------------------------------- */

/* A rank may exit before all of them are reported as started. */
static void emit_start(struct observe *o, uint32_t rank)
{
    if (!o->started)
        o->started = xcalloc((size_t)o->j->plan->nranks, sizeof *o->started);
    if (!o->started[rank])
        event_emit(o->j, "rank_start", "{s:i, s:o}", "rank", (int)rank, "host",
                   event_text(plan_host(o->j->plan, (int)rank)->name));
    o->started[rank] = true;
}

/* A failure on the way belongs to the same recovery. */
static void recovered(struct observe *o)
{
    int64_t took_ns = now_ns() - o->failed_ns;
    event_emit(o->j, "recovered", "{s:f, s:f}", "detect_s",
               (double)(o->told_ns - o->failed_ns) / 1e9, "recover_s",
               (double)took_ns / 1e9);
    o->recoveries++;
    o->recover_ns += took_ns;
    o->longest_ns = took_ns > o->longest_ns ? took_ns : o->longest_ns;
    o->failed_ns = 0;
}

static void on_ranks_started(void *state)
{
    struct observe *o = state;
    struct job *j = o->j;
    if (j->state == JOB_RUNNING)
        o->whole_since_ns = now_ns();
    if (j->state == JOB_RUNNING && o->failed_ns > 0)
        recovered(o);
    if (!events_wanted(j))
        return;
    for (int r = 0; r < j->plan->nranks; r++)
        emit_start(o, (uint32_t)r);
    event_emit(
        j, "started", "{s:f}", "ms",
        (double)(j->spawned_ns - (j->restart.attempt ? j->started_ns : j->created_ns)) /
            1e6);
}

/* Why it ended: "exit" (by itself), "stopped" (ddprun had signalled it), "failed". */
static const char *why_ended(const struct job_rank *r)
{
    return r->failed ? "failed" : r->stopped && r->status ? "stopped" : "exit";
}

static void on_rank_exited(void *state, uint32_t rank)
{
    struct observe *o = state;
    const struct job_rank *r = &o->j->ranks[rank];
    if (o->ranks)
        o->ranks[rank].state = 0; /* the next sample is of another process */
    if (!events_wanted(o->j))
        return;
    emit_start(o, rank);
    OWNED char *tail = r->failed ? output_tail(o->j->output, (int)rank) : NULL;
    json_t *code =
        WIFEXITED(r->status) ? json_integer(WEXITSTATUS(r->status)) : json_null();
    json_t *sig = WIFSIGNALED(r->status) ? json_string(signal_name(WTERMSIG(r->status)))
                                         : json_null();
    event_emit(o->j, "rank_exit", "{s:i, s:o, s:s, s:o, s:o, s:o, s:o}", "rank",
               (int)rank, "host", event_text(plan_host(o->j->plan, (int)rank)->name),
               "why", why_ended(r), "code", code, "signal", sig, "error",
               event_text(r->error), "last_words", event_text(tail));
}

static int64_t whole_ns(const struct observe *o)
{
    return o->whole_ns + (o->whole_since_ns ? now_ns() - o->whole_since_ns : 0);
}

static void on_shutdown(void *state)
{
    struct observe *o = state;
    const struct cause *c = &o->j->cause;
    o->whole_ns = whole_ns(o);
    o->whole_since_ns = 0;
    if (c->kind == CAUSE_NONE || c->kind == CAUSE_RESIZE || o->failed_ns > 0)
        return;
    o->told_ns = now_ns();
    o->failed_ns = c->kind == CAUSE_NODE && o->heard_ns > 0 ? o->heard_ns : c->at_ns;
    if (o->failed_ns > o->told_ns) /* the offset of a node's clock is an estimate */
        o->failed_ns = o->told_ns;
}

static void on_report(void *state)
{
    struct observe *o = state;
    double total_ns = (double)(now_ns() - o->j->created_ns);
    if (o->recoveries == 0)
        return;
    job_say(
        o->j,
        "ddprun: all ranks ran again %.3f s after a failure (mean of %d; longest %.3f s), "
        "and for %.1f %% of the time",
        (double)o->recover_ns / 1e9 / o->recoveries, o->recoveries,
        (double)o->longest_ns / 1e9, 100 * (double)whole_ns(o) / total_ns);
}

static void on_next_attempt(void *state)
{
    struct observe *o = state;
    event_emit(o->j, "restart", "{s:i}", "of", restart_attempts(&o->j->restart));
    free(o->started); /* there may be another number of ranks */
    free(o->ranks);
    o->started = NULL;
    o->ranks = NULL;
    calls_forget(o->calls);
}

static void on_ranks_added(void *state, int first)
{
    struct observe *o = state;
    size_t before = (size_t)first, now = (size_t)o->j->plan->nranks;
    if (o->started)
        o->started = xgrow(o->started, before, now, sizeof *o->started);
    if (o->ranks)
        o->ranks = xgrow(o->ranks, before, now, sizeof *o->ranks);
    calls_forget(o->calls);
    o->planned = false;
    emit_plan(o);
}

/* --- the status --------------------------------------------------------------------- */

/* From the first request on, until there was none for WATCH_MS. */
static void watch(struct observe *o)
{
    if (o->j->state != JOB_RUNNING)
        return;
    if (!o->ranks)
        o->ranks = xcalloc((size_t)o->j->plan->nranks, sizeof *o->ranks);
    if (!o->nodes)
        o->nodes = xcalloc(o->j->alloc->nnodes, sizeof *o->nodes);
    if (o->watched_ms == 0)
        job_send(o->j, NODE_ALL, MSG(watch, true));
    o->watched_ms = now_ms();
}

static void on_tick(void *state)
{
    struct observe *o = state;
    if (o->watched_ms == 0 || now_ms() - o->watched_ms < WATCH_MS)
        return;
    o->watched_ms = 0;
    job_send(o->j, NODE_ALL, MSG(watch, false));
}

/* The counter never decreases while a rank runs, even if orphaned descendants are no
 * longer found: Prometheus would take a decrease for a reset. */
static void take_rank(struct rank_usage *r, const struct rank_use *now, double passed_ms)
{
    uint64_t used_ms = now->cpu_ms > r->seen_ms ? now->cpu_ms - r->seen_ms : 0;
    r->cpu = r->state && passed_ms > 0 ? (double)used_ms / passed_ms * 100 : 0;
    bool same = r->state && now->state;
    r->cpu_ms = same && r->cpu_ms > now->cpu_ms ? r->cpu_ms : now->cpu_ms;
    r->seen_ms = now->cpu_ms;
    r->state = (char)now->state;
    r->rss_kib = now->rss_kib;
}

static int handle_sample(void *state, unsigned node, const struct frame *f,
                         struct ddp_err *err)
{
    struct observe *o = state;
    struct msg_sample *m = f->m;
    int place = o->j->nodes[node].place;
    if (!o->ranks || place < 0)
        return 0;
    const struct plan_node *pn = &o->j->plan->nodes[place];
    struct node_usage *n = &o->nodes[node];
    double passed_ms = n->at_ns ? (double)(m->at_ns - n->at_ns) / 1e6 : 0;
    for (uint32_t i = 0; i < m->nranks && i < (uint32_t)pn->nlocal; i++)
        take_rank(&o->ranks[pn->ranks[i]], &m->ranks[i], passed_ms);
    free(n->gpus);
    *n = (struct node_usage){.at_ns = m->at_ns,
                             .cpu = m->permille / 10.0,
                             .used_kib = m->used_kib,
                             .total_kib = m->total_kib,
                             .ngpus = m->ngpus};
    n->gpus = xcalloc(m->ngpus + 1, sizeof *n->gpus);
    for (uint32_t i = 0; i < m->ngpus; i++)
        n->gpus[i] = m->gpus[i];
    return 0;
}

static int handle_calls(void *state, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    calls_take(((struct observe *)state)->calls, node, f->m);
    return 0;
}

static const struct job_message messages[] = {
    {MSG_SAMPLE, handle_sample}, {MSG_CALLS, handle_calls}, {0}};

/* `looks`: someone sees it; metrics have no collectives. */
static void write_status(struct observe *o, bool looks, struct evbuffer *out)
{
    status_write(o->j, whole_ns(o), o->recover_ns, o->ranks, o->nodes,
                 looks ? o->calls : NULL, out);
}

static void on_status(struct control *c, uint32_t peer, const json_t *request, void *arg)
{
    struct observe *o = arg;
    struct evbuffer *text = evbuffer_new();
    bool looks = is_true(request, "calls");
    watch(o);
    if (looks && o->j->state == JOB_RUNNING)
        calls_ask(o->calls);
    write_status(o, looks, text);
    control_send(c, peer, evbuffer_pullup(text, -1), evbuffer_get_length(text));
    evbuffer_free(text);
}

static void on_output(void *state, int rank, unsigned stream, const void *data,
                      size_t size)
{
    struct observe *o = state;
    if (o->viewer)
        viewer_output(o->viewer, rank, stream, data, size);
}

/* --- life --------------------------------------------------------------------------- */

static int on_init(void *state, struct ddp_err *err)
{
    struct observe *o = state;
    const char *events = o->j->opts->events;
    bool viewed = o->j->opts->ui || o->j->opts->metrics;
    if (events && event_file_check(events, err) < 0)
        return -1;
    if (viewed && !(o->viewer = viewer_create(o->j, err)))
        return -1;
    o->calls = calls_create(o->j);
    return 0;
}

static int on_open(void *state, struct ddp_err *err)
{
    struct observe *o = state;
    const struct opts *opts = o->j->opts;
    control_handle(o->j->control, "status", on_status, o);
    if (opts->events && !(o->file = event_file_open(o->j, opts->events, err)))
        return -1;
    if (o->file)
        events_subscribe(o->j, event_file_put, o->file);
    if (o->viewer && viewer_start(o->viewer, err) < 0)
        return -1;
    if (events_wanted(o->j))
        emit_job(o);
    emit_plan(o);
    return 0;
}

static double seconds(int64_t from_ns, int64_t to_ns)
{
    return from_ns > 0 && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

static void on_end(void *state, int code)
{
    struct observe *o = state;
    const struct job *j = o->j;
    event_emit(o->j, "end", "{s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:i, s:f, s:o}",
               "code", code, "ranks", j->plan ? j->plan->nranks : 0, "hosts",
               j->plan ? j->plan->nnodes : 0, "attempts", j->restart.attempt + 1,
               "start_s", seconds(j->created_ns, j->ready_ns), "run_s",
               seconds(j->ready_ns, j->last_exit_ns), "total_s",
               seconds(j->created_ns, now_ns()), "whole_s", (double)whole_ns(o) / 1e9,
               "recoveries", o->recoveries, "recover_s", (double)o->recover_ns / 1e9,
               "late", job_late(j));
    event_file_close(o->file);
    o->file = NULL;
    if (!o->viewer)
        return;
    struct evbuffer *last = evbuffer_new();
    write_status(o, true, last);
    viewer_finish(o->viewer, last);
    evbuffer_free(last);
}

static void on_fini(void *state)
{
    struct observe *o = state;
    viewer_destroy(o->viewer);
    event_file_close(o->file);
    for (size_t i = 0; o->nodes && i < o->j->alloc->nnodes; i++)
        free(o->nodes[i].gpus);
    free(o->nodes);
    free(o->ranks);
    free(o->started);
    calls_destroy(o->calls);
}

const struct job_plugin observe_job = {
    .name = "observe",
    .state_size = sizeof(struct observe),
    .init = on_init,
    .open = on_open,
    .fini = on_fini,
    .node_joined = on_node_joined,
    .node_lost = on_node_lost,
    .prepare = emit_plan,
    .ranks_started = on_ranks_started,
    .rank_exited = on_rank_exited,
    .output = on_output,
    .shutdown = on_shutdown,
    .next_attempt = on_next_attempt,
    .ranks_added = on_ranks_added,
    .end = on_end,
    .report = on_report,
    .tick = on_tick,
    .messages = messages,
};
