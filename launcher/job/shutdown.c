/* launcher/job/shutdown.c - see shutdown.h */
#include "launcher/job/shutdown.h"

#include "launcher/job/attempt.h"
#include "launcher/job/hooks.h"
#include "launcher/job/report.h"
#include "launcher/job/states.h"
#include "launcher/policy/grace.h"
#include "launcher/transport/node_starter.h"

#include <signal.h>

/* ms for agents to exit; and how much longer than its own steps an agent may take. After
 * a second Ctrl-C: to exit; and for an agent that has stopped to answer, which ends its
 * ranks when it goes on and finds its link closed. */
enum { LEAVE_MS = 3000, AGENT_LATE_MS = 3000, LEAVE_KILLED_MS = 1000, SILENT_MS = 3000 };

/* Since a second Ctrl-C. */
static bool is_killing(const struct job *j)
{
    return j->ending.urgent && j->ending.sig == SIGKILL;
}

static int exit_code(const struct job *j)
{
    return j->cause.kind != CAUSE_NONE ? j->cause.code
           : j->streams.failed         ? 1
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
    if (j->left > 1)
        job_say(j, "ddprun: note: on %u other host%s, too", j->left - 1,
                j->left > 2 ? "s" : "");
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
    bool idle = j->local_pid == 0 && (!j->starter || node_starter_is_idle(j->starter));
    return (idle || j->ending.agents_hang) && !ANY_NODE(j, n, n->via);
}

void job_check_running(struct job *j)
{
    if (j->running == 0)
        job_end(j, SIGTERM, j->opts->grace_ms);
}

void job_check_ending(struct job *j)
{
    bool ended = all_ended(j);
    if (ended && j->restart.pending) {
        job_report_failure(j);
        if (JOB_HOOKS_ALL(j, may_restart))
            job_next_attempt(j);
    } else if (ended && JOB_HOOKS_ALL(j, may_leave)) {
        release_agents(j);
    } else if (j->state == JOB_TERMINATING && j->running == 0) {
        job_move(j, JOB_DRAINING, "all ranks have exited");
    }
}

void job_check_leaving(struct job *j)
{
    if (!all_left(j))
        return;
    if (j->opts->report && j->ready_ns > 0)
        job_report_summary(j);
    job_move(j, JOB_FLUSHING, "every agent has left");
    job_check(j);
}

void job_check_flushing(struct job *j)
{
    if (!j->output || output_finish(j->output))
        finish(j);
}

/* --- limits ------------------------------------------------------------------------- */

int64_t job_limit_terminating(const struct job *j)
{
    if (is_killing(j) && !j->ending.silent_lost)
        return SILENT_MS;
    return grace_longest_ms(j->ending.sig, j->ending.grace_ms) + AGENT_LATE_MS;
}

/* Agents have their own limits; this one is for an agent that hangs. */
int64_t job_limit_draining(const struct job *j)
{
    return j->ending.hurried ? job_limit_terminating(j) + HURRY_MS : 0;
}

int64_t job_limit_leaving(const struct job *j)
{
    return is_killing(j) ? LEAVE_KILLED_MS : LEAVE_MS;
}

int64_t job_limit_flushing(const struct job *j)
{
    return j->ending.hurried ? HURRY_MS : 0;
}

enum { LATE_MS = 100 };

/* An agent that answers no ping is slow, or stopped: only the time in which it answers
 * counts, unless the end is urgent. One that stays silent is lost after --node-timeout
 * (heartbeat.c). */
void job_late_ending(struct job *j)
{
    bool only_silent = is_killing(j) && !j->ending.silent_lost;
    j->ending.silent_lost |= only_silent;
    int64_t more_ms = 0, limit_ms = j->state == JOB_DRAINING ? job_limit_draining(j)
                                                             : job_limit_terminating(j);
    enum job_state state = j->state;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        struct job_node *n = &j->nodes[i];
        if (!job_node_connected(n) || n->ended)
            continue;
        bool silent = only_silent && n->silence.silent_ms >= SILENT_MS / 2;
        int64_t left_ms = silent             ? 0
                          : only_silent      ? limit_ms - SILENT_MS
                          : j->ending.urgent ? 0
                                             : limit_ms - n->silence.heard_for_ms;
        if (left_ms <= 0)
            job_node_lost(j, i,
                          silent ? "its agent does not answer"
                                 : "its agent does not stop the ranks");
        else if (left_ms > more_ms)
            more_ms = left_ms;
    }
    if (more_ms > 0 && j->state == state) /* silence is counted at each heartbeat */
        limit_arm(j->limit, more_ms > LATE_MS ? more_ms : LATE_MS);
}

/* Kill agents that do not exit: ours by SIGKILL, others by closing their lifelines. Those
 * that SIGKILL does not end, as they hang in the kernel, are not waited for. */
void job_late_leaving(struct job *j)
{
    j->ending.agents_hang = j->ending.agents_killed;
    j->ending.agents_killed = true;
    if (j->local_pid > 0)
        kill(j->local_pid, SIGKILL);
    if (j->starter)
        node_starter_kill(j->starter);
    EACH_NODE (j, n)
        n->via = NULL;
    job_limit(j);
    job_check(j);
}

/* The rest of the output is dropped. */
void job_late_flushing(struct job *j)
{
    finish(j);
}
