/* launcher/job/states.c - see states.h */
#define LOG_SUBSYS "job"
#include "launcher/job/states.h"

#include "common/duration.h"
#include "common/log.h"
#include "launcher/job/hooks.h"
#include "launcher/job/report.h"
#include "launcher/job/terminal.h"

#include <signal.h>
#include <stdlib.h>

/* ms to the headline when ranks are slow to exit; after a signal */
enum { REPORT_MS = 500, REPORT_SIGNAL_MS = 100 };

static const struct job_step *step(const struct job *j)
{
    return &j->table->steps[j->state];
}

/* After a failure, or while only a plug-in's processes are left, Ctrl-C is for ddprun. */
static enum terminal_mode terminal_mode_of(const struct job *j)
{
    bool ends_well = j->state > JOB_RUNNING && j->running == 0 &&
                     j->cause.kind == CAUSE_NONE && JOB_HOOKS_ALL(j, may_leave);
    if (j->job.rows == 0 || j->state == JOB_DONE)
        return TERMINAL_OURS;
    return j->state == JOB_RUNNING || ends_well ? TERMINAL_RAW : TERMINAL_KEYS;
}

void job_set_terminal(struct job *j)
{
    if (!j->terminal)
        return;
    output_of_pty(j->output, j->job.rows > 0);
    terminal_set(j->terminal, terminal_mode_of(j));
}

void job_share_terminal(struct job *j)
{
    if (j->terminal)
        terminal_share(j->terminal);
}

void job_limit(struct job *j)
{
    int64_t ms = step(j)->limit_ms ? step(j)->limit_ms(j) : 0;
    EACH_NODE (j, n)
        n->silence.heard_for_ms = 0;
    if (ms > 0)
        limit_arm(j->limit, ms);
    else
        limit_stop(j->limit);
}

static void on_limit(void *arg)
{
    struct job *j = arg;
    log_debug("%s: time limit passed", step(j)->name);
    step(j)->late(j);
}

void job_move(struct job *j, enum job_state to, const char *why)
{
    log_debug("%s -> %s: %s", step(j)->name, j->table->steps[to].name, why);
    j->state = to;
    job_limit(j);
    job_set_terminal(j);
}

void job_check(struct job *j)
{
    if (step(j)->check)
        step(j)->check(j);
}

/* --- failures, and the end ---------------------------------------------------------- */

/* The agents have been told to end the ranks, after which a line follows at once. */
static void prepare_report(void *arg)
{
    struct job *j = arg;
    if (j->output)
        output_prepare(j->output);
}

void job_end(struct job *j, int sig, int64_t grace_ms)
{
    job_send(j, NODE_ALL,
             MSG(terminate, .number = (uint32_t)sig,
                 .grace_ms = (uint32_t)(grace_ms > 0 ? grace_ms : 0),
                 .again = j->restart.pending,
                 .drain_ms = j->ending.hurried ? HURRY_MS : 0));
    if (j->local_pid > 0) /* our agent may have been stopped */
        kill(j->local_pid, SIGCONT);
    EACH_NODE (j, n) {
        n->ended &= !n->unasked; /* it will answer now */
        n->unasked = false;
    }
    j->ended = 0;
    if (j->state < JOB_TERMINATING)
        JOB_HOOKS(j, shutdown);
    j->ending.sig = sig;
    j->ending.grace_ms = grace_ms;
    if (j->state >= JOB_TERMINATING)
        job_limit(j);
    else if (j->cause.kind == CAUSE_NONE)
        job_move(j, JOB_DRAINING, "all ranks have exited");
    else
        job_move(j, JOB_TERMINATING, "something failed");
    if (j->cause.kind != CAUSE_NONE && !j->reported) {
        loop_post_last(j->loop, prepare_report, j);
        loop_arm(j->ending.report_timer,
                 j->cause.kind == CAUSE_SIGNAL ? REPORT_SIGNAL_MS : REPORT_MS);
    }
    job_check(j);
}

void job_forget_cause(struct job *j)
{
    job_report_failure(j);
    event_del(j->ending.report_timer);
    free(j->cause.text);
    j->cause = (struct cause){0};
    j->reported = false;
}

void job_fail(struct job *j, struct cause c)
{
    /* the pending restart is cancelled: `c` ends the job */
    bool cancelled = restart_cancelled(&j->restart, &c);
    if (cancelled)
        job_forget_cause(j);
    bool first = cause_before(&c, &j->cause) && !restart_ignores(&j->restart, &c);
    bool hurried = c.kind == CAUSE_SIGNAL || c.kind == CAUSE_TIME ||
                   (c.kind == CAUSE_HANG && c.rank < 0);
    j->ending.hurried |= hurried;
    if (!j->reported && first) {
        free(j->cause.text);
        j->cause = c;
    } else {
        if (j->reported && c.kind == CAUSE_NODE) /* another one, between two attempts */
            log_warn("%s", c.text);
        free(c.text);
    }
    if (j->state < JOB_TERMINATING && !cancelled)
        restart_asked(&j->restart, &c);
    if (j->state < JOB_TERMINATING || (hurried && j->state <= JOB_DRAINING) ||
        cancelled) {
        bool by_int = c.kind == CAUSE_SIGNAL && c.status == SIGINT;
        job_end(j, by_int ? SIGINT : SIGTERM, j->opts->grace_ms);
    } else if (hurried) { /* it cuts the output that is not written yet */
        job_limit(j);
        job_report_failure(j);
    }
}

void job_fail_rank(struct job *j, int rank)
{
    const struct job_rank *r = &j->ranks[rank];
    job_fail(j, (struct cause){.kind = CAUSE_EXIT,
                               .rank = rank,
                               .status = r->status,
                               .code = cause_exit_code(r->status),
                               .at_ns = r->at_ns,
                               .peak_kib = r->peak_kib,
                               .oom_kills = r->oom_kills,
                               .cpu_max_s = r->cpu_max_s});
}

void job_fail_text(struct job *j, enum cause_kind kind, int code, char *text)
{
    job_fail(
        j, (struct cause){
               .kind = kind, .rank = -1, .code = code, .at_ns = now_ns(), .text = text});
}

static void on_report(evutil_socket_t fd, short what, void *arg)
{
    job_report_failure(arg);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    j->ending.urgent = true;
    job_fail_text(j, CAUSE_TIME, 124, NULL);
}

void job_begin_timeout(struct job *j)
{
    if (j->opts->timeout_ms <= 0 || j->ending.timeout_at_ms > 0)
        return;
    j->ending.timeout_at_ms = now_ms() + j->opts->timeout_ms;
    loop_arm(j->ending.timeout, j->opts->timeout_ms);
}

/* --- creation ----------------------------------------------------------------------- */

void job_states_open(struct job *j)
{
    j->limit = limit_create(j->loop, on_limit, j);
    j->ending.timeout = loop_timer(j->loop, on_timeout, j);
    j->ending.report_timer = loop_timer(j->loop, on_report, j);
}

void job_states_close(struct job *j)
{
    limit_destroy(j->limit);
    loop_free(j->ending.timeout);
    loop_free(j->ending.report_timer);
    free(j->cause.text);
}
