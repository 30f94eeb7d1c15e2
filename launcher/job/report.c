/* launcher/job/report.c - the failure report, and the summary of --report
 *
 * The headline: what failed, where, when, and the state of the other ranks; then the last
 * lines of output of the failed rank. Consequences of the failure are not reported.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/report.h"

#include "common/duration.h"
#include "common/hostlist.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/offload.h"
#include "common/signame.h"
#include "launcher/job/advice.h"
#include "launcher/job/events.h"
#include "launcher/job/hooks.h"
#include "launcher/link/heartbeat.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { ERROR_FILE_MS = 5000 }; /* to write $TORCHELASTIC_ERROR_FILE */

static const char *host_name(const struct job *j, int rank)
{
    return plan_host(j->plan, rank)->name;
}

static const char *host_in_path(int rank, void *arg)
{
    return host_name(arg, rank);
}

static const char *host_in_tag(int rank, void *arg)
{
    const struct job *j = arg;
    return j->plan->nnodes < 2 ? NULL : host_name(j, rank);
}

const struct output_hosts job_output_hosts = {host_in_path, host_in_tag};

/* The line as an event, without what is the same in all. */
static void emit_line(struct job *j, const char *line)
{
    static const char *const levels[] = {"error", "warning", "note"};
    const char *ours = "ddprun: ", *level = "info";
    bool by_us = strncmp(line, ours, strlen(ours)) == 0;
    const char *text = by_us ? line + strlen(ours) : line;
    for (size_t i = 0; by_us && i < ARRAY_LEN(levels); i++) {
        size_t n = strlen(levels[i]);
        if (strncmp(text, levels[i], n) == 0 && strncmp(text + n, ": ", 2) == 0) {
            level = levels[i];
            text += n + 2;
            break;
        }
    }
    event_emit(j, "message", "{s:s, s:o}", "level", level, "text", event_text(text));
}

/* Of a job that a rank of another has spawned: there are other ranks of that number. */
static char *say_which(const struct job *j, char *line)
{
    const char *ours = "ddprun: ";
    if (strncmp(line, ours, strlen(ours)) != 0)
        return line;
    char *which = xasprintf("%sspawned job %s: %s", ours, j->opts->spawn_number,
                            line + strlen(ours));
    free(line);
    return which;
}

void job_say(struct job *j, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *said = xvasprintf(fmt, args);
    va_end(args);
    OWNED char *line = j->opts->spawn_number ? say_which(j, said) : said;
    emit_line(j, line);
    if (j->output)
        output_line(j->output, OUT_STDERR, line);
    else
        fprintf(stderr, "%s\n", line);
}

/* --- sets of ranks ------------------------------------------------------------------ */

static bool still_runs(int rank, void *arg)
{
    const struct job *j = arg;
    return j->spawned_ns > 0 && !j->ranks[rank].exited;
}

/* Before ddprun signalled it, or by a signal that ddprun does not send. */
static bool failed_too(int rank, void *arg)
{
    const struct job *j = arg;
    const struct job_rank *r = &j->ranks[rank];
    int sig = WIFSIGNALED(r->status) ? WTERMSIG(r->status) : 0;
    return r->exited && rank != j->cause.rank &&
           (r->failed || (sig && sig != SIGTERM && sig != SIGKILL && sig != SIGINT));
}

/* Others may have failed because it left them, as by unequal numbers of batches. */
static bool left_early(int rank, void *arg)
{
    const struct job *j = arg;
    const struct job_rank *r = &j->ranks[rank];
    bool reported =
        r->exited && r->at_ns != 0; /* not one that was never started, or lost */
    return reported && r->status == 0 && !r->stopped && r->at_ns < j->cause.at_ns;
}

static bool stopped_by_us(int rank, void *arg)
{
    const struct job *j = arg;
    const struct job_rank *r = &j->ranks[rank];
    return r->stopped && rank != j->cause.rank && !failed_too(rank, arg);
}

static bool left_behind(int rank, void *arg)
{
    const struct job *j = arg;
    return j->ranks[rank].left_behind;
}

static bool end_unknown(int rank, void *arg)
{
    const struct job *j = arg;
    return j->spawned_ns > 0 && j->ranks[rank].end_unknown;
}

/* "; no exit status of ranks 4-7 (node[003-004])": of lost nodes. */
static void add_unknown_ends(struct job *j, char **text)
{
    OWNED char *set = cause_rank_set(j->plan->nranks, end_unknown, j);
    if (!set)
        return;
    SCOPED(strv_finish) struct strv lost = {0};
    EACH_NODE (j, n) {
        if (n->lost && n->place >= 0) /* in this attempt */
            strv_push(&lost, n->host->name);
    }
    OWNED char *hosts = hostlist_compress(lost.v, lost.n);
    xappendf(text, "; no exit status of %s (%s)", set, hosts);
}

/* Between two attempts: the exits of the ranks have been reported already. */
static bool after_all_ranks(const struct job *j)
{
    return j->restart.over && j->running == 0 && j->cause.at_ns > j->counted_ns;
}

/* "; rank 3 had exited with 0; rank 2 failed after it; ddprun stopped ranks 0-1,4" */
static char *other_ranks(struct job *j)
{
    char *text = xstrdup("");
    static const struct {
        bool (*in)(int rank, void *arg);
        const char *what; /* %s: "ranks 0-1,4" */
    } sets[] = {
        {left_early, "; %s had exited with 0"}, {failed_too, "; %s failed after it"},
        {stopped_by_us, "; ddprun stopped %s"}, {still_runs, "; stopping %s"},
        {left_behind, "; %s left behind"},
    };
    if (!j->plan || after_all_ranks(j))
        return text;
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        OWNED char *set = cause_rank_set(j->plan->nranks, sets[i].in, j);
        if (set)
            xappendf(&text, sets[i].what, set);
    }
    add_unknown_ends(j, &text);
    return text;
}

/* --- the headline ------------------------------------------------------------------- */

#define HURRY_HINT "; press Ctrl-C again to kill at once"

/* Ranks still run after the first Ctrl-C. */
static bool may_hurry(const struct job *j)
{
    return j->cause.status == SIGINT && j->requests.interrupts == 1 &&
           j->state == JOB_TERMINATING;
}

static char *what_happened(const struct job *j)
{
    const struct cause *c = &j->cause;
    /* negative if it exited before all ranks were reported as started */
    int64_t after_ns = c->at_ns - j->started_ns;
    double after_s = after_ns > 0 ? (double)after_ns / 1e9 : 0;
    switch (c->kind) {
    case CAUSE_EXIT:
    case CAUSE_ABORT:
    case CAUSE_HANG: {
        if (c->rank < 0)
            return xstrdup(c->text);
        OWNED char *death = c->kind == CAUSE_EXIT ? cause_of_death(c) : xstrdup(c->text);
        OWNED char *label = restart_label(&j->restart);
        return xasprintf("rank %d on %s %s (after %.1f s)%s", c->rank,
                         host_name(j, c->rank), death, after_s, label);
    }
    case CAUSE_TIME:
        return xasprintf("timed out after %.4g s (--timeout)",
                         (double)j->opts->timeout_ms / 1e3);
    case CAUSE_SIGNAL:
        return xasprintf("%sinterrupted (%s)%s", c->text ? c->text : "",
                         signal_name(c->status), may_hurry(j) ? HURRY_HINT : "");
    case CAUSE_NODE:
    case CAUSE_RESIZE: {
        OWNED char *label = after_all_ranks(j) ? restart_label_next(&j->restart)
                                               : restart_label(&j->restart);
        return xasprintf("%s%s", c->text, label);
    }
    case CAUSE_CANNOT:
    case CAUSE_STUCK:
        return xstrdup(c->text);
    case CAUSE_NONE:
    case CAUSE_OUTPUT: /* the reader of stdout closed it: no message */
        break;
    }
    return NULL;
}

/* The Python exception of the failed rank, if PyTorch's @record has written one. */
static const char *exception(const struct job *j)
{
    return j->cause.kind == CAUSE_EXIT ? j->ranks[j->cause.rank].error : NULL;
}

static void report_exception(struct job *j)
{
    if (exception(j))
        job_say(j, "ddprun: rank %d raised %s", j->cause.rank, exception(j));
}

/* Its file may be on a file system that does not answer. */
struct error_file {
    const char *path;
    json_t *root;
    int rc;
};

static void write_error_file(void *arg)
{
    struct error_file *e = arg;
    e->rc = json_dump_file(e->root, e->path, 0);
}

void job_pass_error_on(const struct job *j)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    const char *error = exception(j);
    if (!path || !error)
        return;
    OWNED char *now = xasprintf("%lld", (long long)time(NULL));
    struct error_file e = {.path = path};
    e.root = json_pack("{s:{s:s, s:i, s:{s:s, s:i}}}", "message", "message", error,
                       "errorCode", j->cause.code, "extraInfo", "timestamp", now, "rank",
                       j->cause.rank);
    struct offload *a = offload_begin(write_error_file, &e, sizeof e, NULL);
    const struct error_file *done = a ? offload_wait(a, ERROR_FILE_MS) : NULL;
    if (!done || done->rc < 0)
        log_warn("cannot write TORCHELASTIC_ERROR_FILE, '%s'", path);
    if (done || !a) /* else it is still being written */
        json_decref(e.root);
    offload_end(a);
}

/* Unless they are already the last lines on the terminal, as with a single rank. */
static void report_last_lines(struct job *j)
{
    enum cause_kind kind = j->cause.kind;
    bool of_rank = kind == CAUSE_EXIT || kind == CAUSE_ABORT ||
                   (kind == CAUSE_HANG && j->cause.rank >= 0);
    if (!of_rank || j->plan->nranks < 2 || output_tail_stands(j->output, j->cause.rank))
        return;
    OWNED char *tail = output_tail(j->output, j->cause.rank);
    if (tail[0])
        job_say(j, "ddprun: the last lines of rank %d:", j->cause.rank);
    for (char *line = tail, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        job_say(j, "    %s", line);
    }
}

static void report_advice(struct job *j)
{
    if (j->cause.kind != CAUSE_EXIT)
        return;
    OWNED char *tail = output_tail(j->output, j->cause.rank);
    size_t size = strlen(tail);
    while (size > 0 && strchr("\r\n", tail[size - 1]))
        tail[--size] = '\0';
    const char *last = strrchr(tail, '\n'), *from = j->opts->interpreter;
    OWNED char *python = xasprintf("the Python of rank %d on %s%s%s%s", j->cause.rank,
                                   host_name(j, j->cause.rank), from ? " (" : "",
                                   from ? from : "", from ? ")" : "");
    OWNED char *advice = advice_on(last ? last + 1 : tail, python);
    if (advice)
        job_say(j, "ddprun: note: %s", advice);
}

/* "the name cannot be resolved" of "node03: the name cannot be resolved". */
static const char *reason_of(const struct job *j, size_t node)
{
    const char *trouble = j->nodes[node].trouble, *name = j->alloc->nodes[node].name;
    size_t n = strlen(name);
    return strncmp(trouble, name, n) == 0 && strncmp(trouble + n, ": ", 2) == 0
               ? trouble + n + 2
               : trouble;
}

/* Do both nodes fail for one reason? It may contain the node's name ("try ssh NAME"). */
static bool same_reason(const struct job *j, size_t a, size_t b)
{
    const char *p = reason_of(j, a), *q = reason_of(j, b);
    const char *own = j->alloc->nodes[a].name, *other = j->alloc->nodes[b].name;
    size_t n = strlen(own), m = strlen(other);
    while (*p && *q) {
        bool named =
            n > 0 && strncmp(p, own, n) == 0 && m > 0 && strncmp(q, other, m) == 0;
        if (!named && *p != *q)
            return false;
        p += named ? n : 1;
        q += named ? m : 1;
    }
    return *p == *q;
}

char *job_merge_start_failures(struct job *j, size_t first)
{
    SCOPED(strv_finish) struct strv names = {0};
    for (size_t i = first; i < j->alloc->nnodes; i++) {
        struct job_node *n = &j->nodes[i];
        if (!n->trouble || n->reported || !same_reason(j, first, i))
            continue;
        n->reported = true;
        strv_push(&names, j->alloc->nodes[i].name);
    }
    OWNED char *hosts = hostlist_compress(names.v, names.n);
    return xasprintf("cannot start on %s: %s", hosts, reason_of(j, first));
}

/* A line for each other reason than the headline's for which hosts did not start. */
static void report_other_hosts(struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (!j->nodes[i].trouble || j->nodes[i].reported)
            continue;
        OWNED char *text = job_merge_start_failures(j, i);
        job_say(j, "ddprun: %s", text);
    }
}

/* SIGTERM from outside: a scheduler sends it to all processes of a job, and a rank's
 * death of it may be reported before ddprun gets its own. */
static bool is_sigterm(const struct cause *c)
{
    return (c->kind == CAUSE_SIGNAL && c->status == SIGTERM) ||
           (c->kind == CAUSE_EXIT && WIFSIGNALED(c->status) &&
            WTERMSIG(c->status) == SIGTERM);
}

/* The signal may be the scheduler's answer to a loss that ddprun has survived. */
static void report_loss_hint(struct job *j)
{
    size_t lost = 0;
    while (lost < j->alloc->nnodes && !j->nodes[lost].lost)
        lost++;
    if (!is_sigterm(&j->cause) || lost == j->alloc->nnodes || !j->alloc->loss_hint)
        return;
    job_say(j, "ddprun: note: %s was lost before: %s", j->alloc->nodes[lost].name,
            j->alloc->loss_hint);
}

/* Agents that hear nothing for --node-timeout end: the launcher's laptop slept, say. */
static void report_own_sleep(struct job *j)
{
    int64_t late_ms = heartbeat_late_ms(j->beats.heartbeat);
    if (j->cause.kind == CAUSE_NODE && late_ms > j->opts->node_timeout_ms)
        job_say(j,
                "ddprun: note: this ddprun did not run for %.0f s, longer than "
                "--node-timeout, after which agents end",
                (double)late_ms / 1e3);
}

static void emit_failure(struct job *j, const char *what)
{
    static const char *const kinds[] = {
        [CAUSE_NONE] = "none",     [CAUSE_EXIT] = "exit",     [CAUSE_ABORT] = "abort",
        [CAUSE_CANNOT] = "start",  [CAUSE_NODE] = "host",     [CAUSE_TIME] = "timeout",
        [CAUSE_SIGNAL] = "signal", [CAUSE_OUTPUT] = "output", [CAUSE_STUCK] = "stuck",
        [CAUSE_RESIZE] = "resize", [CAUSE_HANG] = "hang"};
    const struct cause *c = &j->cause;
    if (!events_wanted(j))
        return;
    bool of_rank = j->plan && c->rank >= 0;
    OWNED char *tail = of_rank ? output_tail(j->output, c->rank) : NULL;
    event_emit(j, "failure", "{s:s, s:o, s:o, s:i, s:o, s:o, s:o, s:b}", "kind",
               kinds[c->kind], "rank", of_rank ? json_integer(c->rank) : json_null(),
               "host", of_rank ? event_text(host_name(j, c->rank)) : json_null(), "code",
               c->code, "text", event_text(what), "error",
               event_text(of_rank ? j->ranks[c->rank].error : NULL), "last_words",
               event_text(tail), "restart", j->restart.pending);
}

void job_report_failure(struct job *j)
{
    /* the job that has spawned this one reports why it stops it */
    bool told = j->opts->spawn_number && j->cause.kind == CAUSE_SIGNAL;
    OWNED char *what = j->reported || told ? NULL : what_happened(j);
    if (!what)
        return;
    j->reported = true;
    OWNED char *rest = other_ranks(j);
    emit_failure(j, what);
    job_say(j, "ddprun: %s%s", what, rest);
    report_exception(j);
    report_last_lines(j);
    report_advice(j);
    report_other_hosts(j);
    report_loss_hint(j);
    report_own_sleep(j);
}

static void add_late(json_t *sentences, const char *who, const char *limit,
                     int64_t late_ms)
{
    OWNED char *text =
        xasprintf("%s did not run for %s%.1f s: stopped, blocked, or without a "
                  "CPU",
                  who, limit, (double)late_ms / 1e3);
    json_array_append_new(sentences, event_text(text));
}

json_t *job_late(const struct job *j)
{
    int64_t own_ms = heartbeat_late_ms(j->beats.heartbeat), longest_ms = 0;
    json_t *hosts = json_object(), *sentences = json_array();
    SCOPED(strv_finish) struct strv names = {0};
    EACH_NODE (j, n) {
        if (n->late_ms <= 0)
            continue;
        strv_push(&names, n->host->name);
        json_object_set_new(hosts, n->host->name, json_real((double)n->late_ms / 1e3));
        longest_ms = n->late_ms > longest_ms ? n->late_ms : longest_ms;
    }
    if (own_ms > 0)
        add_late(sentences, "the launcher", "", own_ms);
    if (names.n > 0) {
        OWNED char *list = hostlist_compress(names.v, names.n);
        OWNED char *who = xasprintf("the agent%s on %s", names.n == 1 ? "" : "s", list);
        add_late(sentences, who, names.n == 1 ? "" : "up to ", longest_ms);
    }
    return json_pack("{s:f, s:o, s:o}", "launcher_s", (double)own_ms / 1e3, "hosts",
                     hosts, "sentences", sentences);
}

static void report_late(struct job *j)
{
    json_t *late = job_late(j), *sentence;
    size_t i;
    json_array_foreach (json_object_get(late, "sentences"), i, sentence) {
        job_say(j, "ddprun: %s", json_string_value(sentence));
    }
    json_decref(late);
}

void job_report_summary(struct job *j)
{
    JOB_HOOKS(j, report);
    const struct plan *p = j->plan;
    /* the last rank may exit before its start is reported */
    int64_t ran_ns = j->last_exit_ns > j->ready_ns ? j->last_exit_ns - j->ready_ns : 0;
    int attempts = j->restart.attempt + 1;
    OWNED char *several =
        attempts > 1 ? xasprintf(" in %d attempts", attempts) : xstrdup("");
    job_say(j,
            "ddprun: %d rank%s on %d host%s: all started after %.1f ms, ran for "
            "%.3f s%s, %.3f s in all",
            p->nranks, p->nranks == 1 ? "" : "s", p->nnodes, p->nnodes == 1 ? "" : "s",
            (double)(j->ready_ns - j->created_ns) / 1e6, (double)ran_ns / 1e9, several,
            (double)(now_ns() - j->created_ns) / 1e9);
    report_late(j);
}
