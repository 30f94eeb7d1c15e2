/* launcher/job/states.c - see states.h */
#define LOG_SUBSYS "job"
#include "launcher/job/states.h"

#include "common/err.h"
#include "common/log.h"
#include "launcher/job/plugin.h"
#include "launcher/job/terminal.h"

void job_arm(struct event *timer, int64_t ms)
{
    event_add(timer, &(struct timeval){ms / 1000, ms % 1000 * 1000});
}

static const struct job_step *step(const struct job *j)
{
    return &j->table->steps[j->state];
}

/* After a failure Ctrl-C is for ddprun again. */
static enum terminal_mode terminal_mode_of(const struct job *j)
{
    bool ends_well =
        j->state > JOB_RUNNING && j->running == 0 && j->cause.kind == CAUSE_NONE;
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

void job_limit(struct job *j)
{
    int64_t ms = step(j)->limit_ms ? step(j)->limit_ms(j) : 0;
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        j->nodes[i].silence.heard_for_ms = 0;
    if (ms > 0)
        job_arm(j->limit, ms);
    else
        event_del(j->limit);
}

static void on_limit(evutil_socket_t fd, short what, void *arg)
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

int job_states_open(struct job *j, struct ddp_err *err)
{
    j->limit = evtimer_new(loop_base(j->loop), on_limit, j);
    return j->limit ? 0 : err_set(err, "cannot make an event");
}

void job_states_close(struct job *j)
{
    if (j->limit)
        event_free(j->limit);
}
