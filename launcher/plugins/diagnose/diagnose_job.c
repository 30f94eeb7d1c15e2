/* launcher/plugins/diagnose/diagnose_job.c - hang reports, on the launcher's side
 *
 * An inquiry (ASK) goes to all agents. Each runs ddprun-diagnose, which does not
 * block the agent, and passes its output on in ANSWERs, the last of them without data.
 * The launcher runs it again, to evaluate all answers.
 *
 * A brief inquiry asks only how long ago a rank has last entered a collective: it is sent
 * at the moment at which --hang-after would have passed since the last known one, so
 * there is one per --hang-after while the job makes progress. Waits that plug-ins know of
 * are checked with it. A full one ends in a report. The report before the end by
 * --timeout is made of answers collected shortly before, as the ranks are then about to
 * be stopped. If a rank fails by a timeout of its own (of its process group, say) the
 * rank that it has waited for may still run: the failure is held back until the answers
 * are there, as it stops all ranks.
 */
#define LOG_SUBSYS "diagnose"
#include "launcher/job/plugin.h"
#include "launcher/link/heartbeat.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/idset.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/write_all.h"
#include "launcher/control/control.h"
#include "launcher/job/events.h"
#include "launcher/transport/own_program.h"

#include <event2/buffer.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ms: for the nodes' answers, and while a failure is held back; between two brief
 * inquiries at least; how long before the end by --timeout the ranks are asked. Bytes: of
 * all answers, and of the report's lines.
 */
enum { ANSWERS_MS = 15000, HELD_MS = 3000, BRIEF_MS = 100 };
enum { LEAD_MS = 2000, LEAD_PART = 10 };
enum { ANSWERS_MAX = 256 << 20, LINES_MAX = 4 << 20 };

enum reason { REASON_BRIEF, REASON_ASKED, REASON_HANG, REASON_TIMEOUT, REASON_FAILURE };
static const char *const reasons[] = {"", "report", "hang", "timeout", "failure"};

struct diagnose {
    struct job *j; /* borrowed */

    uint32_t inquiry; /* number of the last one */
    enum reason reason;
    struct answer {
        struct evbuffer *text; /* owned; NULL: not asked */
        bool complete;
    } * answers;             /* owned, by node; NULL: no inquiry is running */
    size_t left;             /* nodes that have not answered */
    size_t bytes;            /* of all answers */
    int64_t asked_ms;        /* when */
    struct event *deadline;  /* owned: of the answers */
    struct event *check;     /* owned: the next brief inquiry */
    struct event *last_call; /* owned: shortly before --timeout */
    int64_t reported_ms;     /* when a hang was reported; 0: none in this attempt */
    int64_t late_ms;         /* heartbeat_late_ms() at the last brief inquiry */
    struct idset held;       /* ranks that have failed, while that is held back */

    struct own_program child; /* evaluates the answers */
    struct evbuffer *lines;   /* owned: what it has written */
    struct strv peers;        /* numbers of the control connections that have asked */
    char *folder;             /* owned: for reports */
};

static void evaluate(struct diagnose *d);

/* Reply to all waiting requests. */
static void answer_peers(struct diagnose *d, json_t *reply)
{
    for (size_t i = 0; i < d->peers.n; i++)
        control_reply(d->j->control, (uint32_t)strtoul(d->peers.v[i], NULL, 10), reply);
    strv_finish(&d->peers);
    json_decref(reply);
}

static void refuse_peers(struct diagnose *d, const char *why)
{
    if (d->peers.n > 0)
        answer_peers(d, json_pack("{s:s}", "error", why));
}

/* --- inquiries ---------------------------------------------------------------------- */

static void drop_answers(struct diagnose *d)
{
    for (size_t i = 0; d->answers && i < d->j->alloc->nnodes; i++) {
        if (d->answers[i].text)
            evbuffer_free(d->answers[i].text);
    }
    free(d->answers);
    d->answers = NULL;
    event_del(d->deadline);
}

static void inquire(struct diagnose *d, enum reason reason)
{
    struct job *j = d->j;
    drop_answers(d);
    d->answers = xcalloc(j->alloc->nnodes + 1, sizeof *d->answers);
    d->bytes = 0;
    d->reason = reason;
    d->asked_ms = now_ms();
    d->left = job_ask(
        j, MSG(ask, reason == REASON_BRIEF ? ASK_BRIEF : ASK_REPORT, ++d->inquiry));
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (job_node_takes_part(&j->nodes[i]))
            d->answers[i].text = evbuffer_new();
    }
    loop_arm(d->deadline, reason == REASON_FAILURE ? HELD_MS : ANSWERS_MS);
}

static void check_later(struct diagnose *d, int64_t ms)
{
    if (d->j->opts->hang_after_ms > 0)
        loop_arm(d->check, ms > BRIEF_MS ? ms : BRIEF_MS);
}

/* The longest wait that plug-ins take for a hang; 0: there is none. */
static int64_t longest_wait_ms(const struct diagnose *d)
{
    json_auto_t *list = job_waits(d->j);
    const json_t *wait;
    size_t i;
    int64_t ms = 0;
    json_array_foreach (list, i, wait) {
        int64_t its = int_of(wait, "hang_ms");
        ms = its > ms ? its : ms;
    }
    return ms;
}

/* Has a wait, not counting the time in which the job was stopped, become a hang that is
 * not reported yet? If not, `left_ms` is lowered to the time after which it may have. */
static bool is_hang(const struct diagnose *d, int64_t wait_ms, int64_t stopped_ms,
                    int64_t *left_ms)
{
    int64_t after_ms = d->j->opts->hang_after_ms;
    int64_t ms = wait_ms > stopped_ms ? wait_ms - stopped_ms : 0;
    if (ms < after_ms && after_ms - ms < *left_ms)
        *left_ms = after_ms - ms;
    return ms >= after_ms && (!d->reported_ms || wait_ms < now_ms() - d->reported_ms);
}

/* Its ranks may wait for those of another job, which compute. */
static bool has_related(const struct job *j)
{
    return j->opts->spawn_number || j->spawned.running + j->spawned.ended > 0;
}

/* All brief answers are there (collect_idle()). Ranks wait for messages in healthy jobs,
 * too, while others compute: it is a hang if all others are stopped. Time in which we
 * did not run is no part of --hang-after: the ranks were stopped as well, perhaps. */
static void evaluate_brief(struct diagnose *d)
{
    int64_t idle_ms = INT64_MAX, left_ms = d->j->opts->hang_after_ms;
    int64_t late_ms = heartbeat_late_ms(d->j->beats.heartbeat),
            stopped_ms = late_ms - d->late_ms;
    bool waiting = false;
    json_int_t blocked = 0, stopped = 0;
    for (size_t i = 0; i < d->j->alloc->nnodes; i++) {
        struct evbuffer *text = d->answers[i].text;
        size_t n = text ? evbuffer_get_length(text) : 0;
        json_auto_t *o =
            n ? json_loadb((char *)evbuffer_pullup(text, -1), n, 0, NULL) : NULL;
        int64_t idle = int_of(o, "idle_ms");
        if (int_of(o, "known") > 0 && idle >= 0)
            idle_ms = idle < idle_ms ? idle : idle_ms;
        waiting |= int_of(o, "waiting") > 0;
        blocked += int_of(o, "blocked");
        stopped += int_of(o, "stopped");
    }
    drop_answers(d);
    d->late_ms = late_ms;
    bool hangs = idle_ms != INT64_MAX && is_hang(d, idle_ms, stopped_ms, &left_ms);
    waiting |=
        blocked > 0 && blocked + stopped == d->j->plan->nranks && !has_related(d->j);
    if ((hangs && waiting) || is_hang(d, longest_wait_ms(d), stopped_ms, &left_ms)) {
        d->reported_ms = now_ms();
        inquire(d, REASON_HANG);
    } else {
        check_later(d, left_ms);
    }
}

/* The failures that were held back. The first one ends the attempt. */
static void release(struct diagnose *d)
{
    SCOPED(idset_finish) struct idset held = d->held;
    d->held = (struct idset){0};
    for (int r = 0; r < d->j->plan->nranks; r++) {
        if (idset_has(&held, r))
            job_fail_rank(d->j, r);
    }
}

static void answered(struct diagnose *d)
{
    event_del(d->deadline);
    if (d->reason == REASON_BRIEF) {
        evaluate_brief(d);
    } else if (d->reason != REASON_TIMEOUT) { /* used when that has passed */
        evaluate(d);
        release(d);
    }
}

static void node_done(struct diagnose *d, unsigned node, bool complete)
{
    if (!d->answers || !d->answers[node].text || d->answers[node].complete)
        return;
    d->answers[node].complete = complete;
    if (!complete) { /* lost: a part of its answer is not used */
        evbuffer_free(d->answers[node].text);
        d->answers[node].text = NULL;
    }
    if (--d->left == 0)
        answered(d);
}

static int handle_answer(void *state, unsigned node, const struct frame *f,
                         struct ddp_err *err)
{
    struct diagnose *d = state;
    const struct msg_answer *m = f->m;
    if (m->id != d->inquiry || !d->answers || !d->answers[node].text)
        return 0; /* too late */
    if (m->ndata == 0) {
        node_done(d, node, true);
    } else if (d->bytes + m->ndata <= ANSWERS_MAX) {
        d->bytes += m->ndata;
        evbuffer_add(d->answers[node].text, m->data, m->ndata);
    }
    return 0;
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    answered(arg);
}

static void on_check(evutil_socket_t fd, short what, void *arg)
{
    struct diagnose *d = arg;
    if (d->j->state == JOB_RUNNING && !d->answers && d->child.pid == 0)
        inquire(d, REASON_BRIEF);
    else if (d->j->state == JOB_RUNNING)
        check_later(d, d->j->opts->hang_after_ms);
}

static void on_last_call(evutil_socket_t fd, short what, void *arg)
{
    struct diagnose *d = arg;
    if (d->j->state == JOB_RUNNING && (!d->answers || d->reason == REASON_BRIEF))
        inquire(d, REASON_TIMEOUT);
}

/* --- the report --------------------------------------------------------------------- */

/* Ranks that no answer describes, and why. */
static json_t *other_ranks(const struct diagnose *d)
{
    const struct job *j = d->j;
    json_t *list = json_array();
    for (int r = 0; r < j->plan->nranks; r++) {
        const struct plan_node *pn = &j->plan->nodes[j->plan->ranks[r].node];
        const struct job_rank *rank = &j->ranks[r];
        size_t node = (size_t)(pn->host - j->alloc->nodes);
        OWNED char *gone = NULL;
        if (rank->exited) {
            struct cause c = {.kind = CAUSE_EXIT, .rank = r, .status = rank->status};
            gone =
                rank->status == 0 ? xstrdup("exited with status 0") : cause_of_death(&c);
        } else if (!d->answers[node].complete) {
            gone = xstrdup("not answered");
        }
        if (gone)
            json_array_append_new(list, json_pack("{s:i, s:o, s:o}", "rank", r, "host",
                                                  event_text(pn->host->name),
                                                  rank->exited ? "exited" : "unknown",
                                                  event_text(gone)));
    }
    return list;
}

/* Do its last lines tell of a timeout? The last words are libddpgroup's. */
static bool timed_out(const struct job *j, int rank)
{
    static const char *const words[] = {"timed out", "timeout", " not come "};
    OWNED char *tail = output_tail(j->output, rank);
    bool found = false;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        found |= strcasestr(tail, words[i]) != NULL;
    return found;
}

/* Ranks that have failed by a timeout, or are about to: their exit may take a while. */
static json_t *timed_out_ranks(const struct diagnose *d)
{
    json_t *list = json_array();
    for (int r = 0; d->reason == REASON_FAILURE && r < d->j->plan->nranks; r++) {
        if (d->j->ranks[r].exited ? idset_has(&d->held, r) : timed_out(d->j, r))
            json_array_append_new(list, json_integer(r));
    }
    return list;
}

/* The answers as a file without a name: a line for the job, two for each node. */
static int answers_file(const struct diagnose *d)
{
    const struct job *j = d->j;
    int fd = memfd_create("ddprun-report", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    json_auto_t *head = json_pack(
        "{s:o, s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "job", event_text(j->job.id),
        "reason", reasons[d->reason], "attempt", j->restart.attempt + 1, "nranks",
        j->plan->nranks, "ranks", other_ranks(d), "waits", job_waits(d->j), "timed_out",
        timed_out_ranks(d), "late", job_late(j));
    OWNED char *first = json_dumps(head, JSON_COMPACT);
    bool good = first && write_all(fd, first, strlen(first)) == 0;
    for (size_t i = 0; good && i < j->alloc->nnodes; i++) {
        struct evbuffer *text = d->answers[i].text;
        if (!d->answers[i].complete)
            continue;
        OWNED char *line = xasprintf("\n%s\n", j->alloc->nodes[i].name);
        size_t n = evbuffer_get_length(text);
        good = write_all(fd, line, strlen(line)) == 0 &&
               write_all(fd, evbuffer_pullup(text, -1), n) == 0;
    }
    if (good && lseek(fd, 0, SEEK_SET) == 0)
        return fd;
    close_fd(&fd);
    return -1;
}

/* Apply --on-hang; `found` is the verdict, NULL if there is none. */
static void act(struct diagnose *d, const json_t *found)
{
    struct job *j = d->j;
    const json_t *first = json_array_get(json_object_get(found, "ranks"), 0);
    int rank = (int)json_integer_value(first);
    if (d->reason != REASON_HANG || j->state != JOB_RUNNING)
        return;
    if (j->opts->on_hang == ON_HANG_STOP)
        job_fail_text(j, CAUSE_HANG, 124, xstrdup("stopped: the job hangs (--on-hang)"));
    else if (j->opts->on_hang == ON_HANG_RESTART && rank < j->plan->nranks)
        job_fail(j, (struct cause){.kind = CAUSE_HANG,
                                   .rank = rank,
                                   .code = 124,
                                   .at_ns = now_ns(),
                                   .text = xstrdup(first ? "is the reason of a hang"
                                                         : "hangs, as the others")});
}

/* The job goes on without one, or ends as with one. */
static void no_report(struct diagnose *d, const char *why)
{
    log_warn("no report: %s", why);
    refuse_peers(d, why);
    act(d, NULL);
    if (d->j->state == JOB_RUNNING)
        check_later(d, d->j->opts->hang_after_ms);
}

static void evaluate(struct diagnose *d)
{
    struct ddp_err err;
    SCOPED(strv_finish) struct strv args = {0};
    SCOPED(close_fd) int fd = answers_file(d);
    if (fd < 0)
        err_errno(&err, "cannot hold the answers");
    drop_answers(d);
    evbuffer_drain(d->lines, evbuffer_get_length(d->lines));
    strv_push(&args, "report");
    strv_push(&args, d->folder);
    if (fd < 0 ||
        own_program_start(&d->child, d->j->loop, "ddprun-diagnose", &args, fd, &err) < 0)
        no_report(d, err.text);
}

static void print_lines(struct diagnose *d, char *text)
{
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        job_say(d->j, "%s", line);
    }
}

/* The first line is the verdict as JSON, the others are for the user. */
static void on_out(const void *data, size_t n, void *arg)
{
    struct diagnose *d = arg;
    if (n > 0) {
        if (evbuffer_get_length(d->lines) + n < LINES_MAX)
            evbuffer_add(d->lines, data, n);
        return;
    }
    evbuffer_add(d->lines, "", 1);
    char *text = (char *)evbuffer_pullup(d->lines, -1), *rest = strchr(text, '\n');
    json_t *found = rest ? json_loadb(text, (size_t)(rest - text), 0, NULL) : NULL;
    if (found) {
        event_emit(d->j, "hang", "{s:s, s:O, s:O, s:O}", "reason", reasons[d->reason],
                   "kind", json_object_get(found, "kind"), "ranks",
                   json_object_get(found, "ranks"), "sentences",
                   json_object_get(found, "sentences"));
        answer_peers(
            d, json_pack("{s:O, s:o}", "verdict", found, "text", event_text(rest + 1)));
        print_lines(d, rest + 1);
        act(d, found);
        json_decref(found);
        if (d->j->state == JOB_RUNNING)
            check_later(d, d->j->opts->hang_after_ms);
    } else {
        no_report(d, "ddprun-diagnose has failed");
    }
    job_check(d->j);
}

/* --- hooks -------------------------------------------------------------------------- */

static const char not_running[] = "its ranks are not running";

static bool diagnose_signal(void *state, int sig)
{
    struct diagnose *d = state;
    if (sig != SIGQUIT)
        return false;
    if (d->j->state != JOB_RUNNING) /* between two attempts, too: the job goes on */
        log_warn("no report on the job: %s", not_running);
    else if (!d->answers || d->reason == REASON_BRIEF)
        inquire(d, REASON_ASKED);
    return true;
}

static bool diagnose_rank_failed(void *state, uint32_t rank)
{
    struct diagnose *d = state;
    bool holds = idset_count(&d->held) > 0;
    if (d->j->running == 0 ||
        (!holds && (d->j->opts->hang_after_ms == 0 || d->child.fd >= 0 ||
                    !timed_out(d->j, (int)rank))))
        return false;
    idset_add(&d->held, (int)rank, (int)rank);
    if (!holds)
        inquire(d, REASON_FAILURE);
    return true;
}

/* The last one: there is nothing to report. */
static void diagnose_rank_exited(void *state, uint32_t rank)
{
    struct diagnose *d = state;
    if (d->j->running == 0)
        release(d);
}

static void on_request(struct control *c, uint32_t peer, const json_t *request, void *arg)
{
    struct diagnose *d = arg;
    if (d->j->state != JOB_RUNNING) {
        control_refuse(c, peer, not_running);
        return;
    }
    strv_pushf(&d->peers, "%u", peer);
    diagnose_signal(d, SIGQUIT);
}

static void diagnose_ranks_started(void *state)
{
    struct diagnose *d = state;
    const struct opts *o = d->j->opts;
    check_later(d, o->hang_after_ms);
    int64_t lead_ms = o->timeout_ms / LEAD_PART;
    lead_ms = lead_ms < LEAD_MS ? lead_ms : LEAD_MS;
    int64_t left_ms = d->j->ending.timeout_at_ms - lead_ms - now_ms();
    if (o->timeout_ms > 0 && d->j->restart.attempt == 0)
        loop_arm(d->last_call, left_ms > 0 ? left_ms : 0);
}

static void diagnose_node_lost(void *state, unsigned node, const char *why)
{
    node_done(state, node, false);
}

static void diagnose_shutdown(void *state)
{
    struct diagnose *d = state;
    event_del(d->check);
    event_del(d->last_call);
    bool late = d->answers && d->reason == REASON_TIMEOUT;
    idset_finish(&d->held); /* the job ends for another reason */
    if (late && d->j->cause.kind == CAUSE_TIME)
        evaluate(d);
    else
        drop_answers(d);
    if (d->child.fd < 0)
        refuse_peers(d, not_running);
}

static bool diagnose_may_leave(void *state)
{
    const struct diagnose *d = state;
    return d->child.fd < 0;
}

static void diagnose_next_attempt(void *state)
{
    ((struct diagnose *)state)->reported_ms = 0;
}

static int diagnose_open(void *state, struct ddp_err *err)
{
    struct diagnose *d = state;
    struct loop *loop = d->j->loop;
    OWNED char *id = xstrdup(d->j->job.id ? d->j->job.id : "");
    for (char *p = id; (p = strchr(p, '/'));)
        *p = '_';
    d->folder = xasprintf("ddprun-report-%s", id);
    d->child =
        (struct own_program){.reap = d->j->reap, .fd = -1, .out = on_out, .arg = d};
    d->deadline = loop_timer(loop, on_deadline, d);
    d->check = loop_timer(loop, on_check, d);
    d->last_call = loop_timer(loop, on_last_call, d);
    d->lines = evbuffer_new();
    if (!d->lines)
        abort();
    control_handle(d->j->control, "report", on_request, d);
    return 0;
}

static void diagnose_fini(void *state)
{
    struct diagnose *d = state;
    if (d->deadline) {
        drop_answers(d);
        own_program_kill(&d->child);
    }
    loop_free(d->deadline);
    loop_free(d->check);
    loop_free(d->last_call);
    if (d->lines)
        evbuffer_free(d->lines);
    idset_finish(&d->held);
    strv_finish(&d->peers);
    free(d->folder);
}

static const struct job_message messages[] = {{MSG_ANSWER, handle_answer}, {0}};

const struct job_plugin diagnose_job = {
    .name = "diagnose",
    .state_size = sizeof(struct diagnose),
    .open = diagnose_open,
    .fini = diagnose_fini,
    .node_lost = diagnose_node_lost,
    .ranks_started = diagnose_ranks_started,
    .rank_exited = diagnose_rank_exited,
    .rank_failed = diagnose_rank_failed,
    .signal = diagnose_signal,
    .shutdown = diagnose_shutdown,
    .may_leave = diagnose_may_leave,
    .may_restart = diagnose_may_leave,
    .next_attempt = diagnose_next_attempt,
    .messages = messages,
};
