/* launcher/job/shutdown.c - ends the job, or restarts its ranks
 *
 * The first cause starts the escalating shutdown of all ranks (policy/grace.h). When
 * every node reports that its ranks have ended, they are restarted (--max-restarts), or
 * the failure is reported, the agents exit and the rest of the output is written. The
 * time limits of these states are here; the table of states is in job.c.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/policy/grace.h"
#include "launcher/transport/node_starter.h"
#include "launcher/transport/program.h"

#include <signal.h>
#include <stdlib.h>

/* ms: to the headline when ranks are slow to exit (after a signal: REPORT_SIGNAL_MS); for
 * agents to exit; for a reader to consume the rest of the output after a signal or
 * --timeout; and how much longer than its own steps an agent may take. */
enum {
    REPORT_MS = 500,
    REPORT_SIGNAL_MS = 100,
    LEAVE_MS = 3000,
    HURRY_MS = 2000,
    AGENT_LATE_MS = 3000
};

void job_arm(struct event *timer, int64_t ms)
{
    event_add(timer, &(struct timeval){ms / 1000, ms % 1000 * 1000});
}

void job_end(struct job *j, int sig, int64_t grace_ms)
{
    job_send(j, NODE_ALL,
             MSG(terminate, .number = (uint32_t)sig,
                 .grace_ms = (uint32_t)(grace_ms > 0 ? grace_ms : 0),
                 .again = j->restart.pending, .drain_ms = j->hurried ? HURRY_MS : 0));
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        j->nodes[i].ended &= !j->nodes[i].unasked; /* it will answer now */
        j->nodes[i].unasked = false;
    }
    j->ended = 0;
    if (j->state < JOB_TERMINATING)
        JOB_HOOKS(j, shutdown);
    j->end_sig = sig;
    j->end_grace_ms = grace_ms;
    if (j->state >= JOB_TERMINATING)
        job_limit(j);
    else if (j->cause.kind == CAUSE_NONE)
        job_move(j, JOB_DRAINING, "all ranks have exited");
    else
        job_move(j, JOB_TERMINATING, "something failed");
    if (j->cause.kind != CAUSE_NONE && !j->reported)
        job_arm(j->report_timer,
                j->cause.kind == CAUSE_SIGNAL ? REPORT_SIGNAL_MS : REPORT_MS);
    job_check(j);
}

void job_forget_cause(struct job *j)
{
    job_report_failure(j);
    event_del(j->report_timer);
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
    bool hurried = c.kind == CAUSE_SIGNAL || c.kind == CAUSE_TIME;
    j->hurried |= hurried;
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
    } else if (hurried) {
        job_limit(j);
    }
}

void job_fail_text(struct job *j, enum cause_kind kind, int code, char *text)
{
    job_fail(
        j, (struct cause){
               .kind = kind, .rank = -1, .code = code, .at_ns = now_ns(), .text = text});
}

static int exit_code(const struct job *j)
{
    return j->cause.kind != CAUSE_NONE ? j->cause.code
           : j->output_failed          ? 1
                                       : j->verdict;
}

static void finish(struct job *j)
{
    job_move(j, JOB_DONE, "no output is left");
    loop_stop(j->loop, exit_code(j));
}

static void release_agents(struct job *j)
{
    job_report_failure(j);
    job_move(j, JOB_LEAVING, "every node has ended its ranks");
    job_send(j, NODE_ALL, MSG(shutdown, (uint32_t)exit_code(j)));
    if (j->starter)
        node_starter_stop(j->starter);
    job_check(j);
}

static bool all_ended(struct job *j)
{
    for (; j->ended < j->alloc->nnodes; j->ended++) {
        if (job_node_connected(&j->nodes[j->ended]) && !j->nodes[j->ended].ended)
            return false;
    }
    return true;
}

static bool all_left(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].via)
            return false;
    }
    return j->agents_hang ||
           (j->local_pid == 0 && (!j->starter || node_starter_is_idle(j->starter)));
}

void job_check(struct job *j)
{
    bool ending = j->state == JOB_TERMINATING || j->state == JOB_DRAINING;
    if (j->state == JOB_RUNNING && j->running == 0)
        job_end(j, SIGTERM, j->opts->grace_ms);
    else if (ending && j->restart.pending && all_ended(j)) {
        job_report_failure(j);
        if (job_plugins_may_restart(j))
            job_next_attempt(j);
    } else if (ending && all_ended(j) && job_plugins_may_leave(j))
        release_agents(j);
    else if (j->state == JOB_TERMINATING && j->running == 0)
        job_move(j, JOB_DRAINING, "all ranks have exited");
    else if (j->state == JOB_LEAVING && all_left(j)) {
        if (j->opts->report && j->ready_ns > 0)
            job_report_summary(j);
        job_move(j, JOB_FLUSHING, "every agent has left");
    }
    if (j->state == JOB_FLUSHING && (!j->output || output_finish(j->output)))
        finish(j);
}

/* --- limits ------------------------------------------------------------------------- */

int64_t job_limit_terminating(const struct job *j)
{
    return grace_longest_ms(j->end_sig, j->end_grace_ms) + AGENT_LATE_MS;
}

/* Agents have their own limits; this one is for an agent that hangs. */
int64_t job_limit_draining(const struct job *j)
{
    return j->hurried ? job_limit_terminating(j) + HURRY_MS : 0;
}

int64_t job_limit_leaving(const struct job *j)
{
    return LEAVE_MS;
}

int64_t job_limit_flushing(const struct job *j)
{
    return j->hurried ? HURRY_MS : 0;
}

void job_late_terminating(struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (job_node_connected(&j->nodes[i]) && !j->nodes[i].ended)
            job_node_lost(j, i, "its agent does not stop the ranks");
    }
}

void job_late_draining(struct job *j)
{
    job_late_terminating(j);
}

/* Kill agents that do not exit: ours by SIGKILL, others by closing their lifelines. Those
 * that SIGKILL does not end, as they hang in the kernel, are not waited for. */
void job_late_leaving(struct job *j)
{
    j->agents_hang = j->agents_killed;
    j->agents_killed = true;
    if (j->local_pid > 0)
        kill(j->local_pid, SIGKILL);
    if (j->starter)
        node_starter_kill(j->starter);
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        j->nodes[i].via = NULL;
    job_limit(j);
    job_check(j);
}

/* The rest of the output is dropped. */
void job_late_flushing(struct job *j)
{
    finish(j);
}

static void on_report(evutil_socket_t fd, short what, void *arg)
{
    job_report_failure(arg);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    job_fail_text(j, CAUSE_TIME, 124, NULL);
}

void job_begin_timeout(struct job *j)
{
    if (j->opts->timeout_ms <= 0 || j->timeout_at_ms > 0)
        return;
    j->timeout_at_ms = now_ms() + j->opts->timeout_ms;
    job_arm(j->timeout, j->opts->timeout_ms);
}

int job_open_timers(struct job *j, struct ddp_err *err)
{
    struct event_base *base = loop_base(j->loop);
    j->timeout = evtimer_new(base, on_timeout, j);
    j->report_timer = evtimer_new(base, on_report, j);
    return j->timeout && j->report_timer ? 0 : err_set(err, "cannot make an event");
}
