/* launcher/job/attempt.c - one attempt to run all ranks, and the next one
 *
 * Plug-ins prepare it (the store gets a port), then every node gets its orders: the job
 * and its share of the ranks, or, as the agents stay, only that they start them again.
 */
#include "launcher/job/attempt.h"

#include "common/duration.h"
#include "common/mem.h"
#include "launcher/job/describe.h"
#include "launcher/job/hooks.h"
#include "launcher/job/io.h"
#include "launcher/job/losses.h"
#include "launcher/job/spares.h"
#include "launcher/job/states.h"
#include "launcher/transport/program.h"

#include <stdlib.h>

/* The orders that a node should have: a place in the plan, or enum told. */
static int orders_of(const struct job *j, unsigned node)
{
    const struct job_node *n = &j->nodes[node];
    if (n->place >= 0)
        return n->place;
    return n->told == TOLD_NOTHING && !job_is_spare(j, node) ? TOLD_NOTHING
                                                             : TOLD_STANDBY;
}

static void send_share(struct job *j, unsigned node)
{
    struct msg_share share;
    int to = orders_of(j, node);
    job_share_of(j, to >= 0 ? to : j->plan->nnodes - 1, &share);
    share.standby = to < 0;
    job_send(j, node, MSG_SHARE, &share);
    msg_share_finish(&share);
    j->nodes[node].told = to;
}

void job_welcome(struct job *j, unsigned node)
{
    job_send(j, node, MSG_JOB, &j->job);
    send_share(j, node);
}

/* The job and its share to each node; or, if all have them, that ranks start again. */
static void send_orders(struct job *j)
{
    bool news = false;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        struct job_node *n = &j->nodes[i];
        n->ended = n->unasked = false;
        news |= job_node_connected(n) && orders_of(j, i) != n->told;
    }
    j->job.attempt = (uint32_t)j->restart.attempt;
    if (!news) {
        job_send(j, NODE_ALL,
                 MSG(restart, .attempt = j->job.attempt, .addr = j->job.master_addr,
                     .port = j->job.master_port, .rank0_port = j->job.rank0_port));
        return;
    }
    job_send(j, NODE_ALL, MSG_JOB, &j->job);
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (job_node_connected(&j->nodes[i]) && orders_of(j, i) != TOLD_NOTHING)
            send_share(j, i);
    }
}

void job_started(struct job *j, const char *why)
{
    job_move(j, JOB_RUNNING, why);
    j->started_ns = now_ns();
    job_begin_timeout(j);
    job_send_window(j); /* it may have changed since the plan was made */
    job_input_begin(j);
}

void job_hold(struct job *j)
{
    j->holds++;
}

void job_release(struct job *j)
{
    if (j->state != JOB_PREPARING || --j->holds > 0)
        return;
    send_orders(j);
    job_started(j, "every node has its assignment");
}

void job_renew_rank(struct job *j, int rank)
{
    free(j->ranks[rank].error);
    j->ranks[rank] = (struct job_rank){0};
    j->running++;
}

void job_prepare(struct job *j)
{
    j->holds = 1;
    j->store_lost = false;
    JOB_HOOKS(j, prepare);
    job_release(j);
}

void job_next_attempt(struct job *j)
{
    job_forget_cause(j);
    restart_next(&j->restart);
    struct ddp_err err;
    if (job_replace_lost(j, &err) < 0) {
        job_fail_text(j, CAUSE_CANNOT, EXIT_CANNOT_START, xstrdup(err.text));
        job_check(j); /* every node has ended its ranks: no message will come */
        return;
    }
    OWNED char *label = restart_label(&j->restart);
    job_say(j, "ddprun: all ranks are started again%s", label);
    OWNED char *line = xasprintf("--- ddprun%s ---\n", label);
    output_renew(j->output, j->plan->nranks, line);
    j->running = 0;
    for (int r = 0; r < j->plan->nranks; r++)
        job_renew_rank(j, r);
    j->spawned_nodes = 0;
    j->spawned_ns = j->last_exit_ns = 0;
    JOB_HOOKS(j, next_attempt);
    job_move(j, JOB_PREPARING, "next attempt");
    job_dismiss_leaving(j);
    job_prepare(j);
}
