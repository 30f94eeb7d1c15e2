/* launcher/job/job.c - see job.h
 *
 * The state machine and its event loop.
 *
 *     new -> gathering -> preparing -> running -> draining -> leaving -> flushing -> done
 *      |                    ^  ^          ^         |  ^
 *      |                    |  +----------|---------+  |    with --max-restarts
 *      |                    |             |            |
 *      +--------- all on this machine ----+       terminating <- any before, on failure
 *
 * A state has a time limit, or lasts as long as the ranks (or the reader of their output)
 * need; a signal or --timeout then ends it.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/kill_tree.h"
#include "launcher/control/control.h"
#include "launcher/control/rundir.h"
#include "launcher/job/attempt.h"
#include "launcher/job/describe.h"
#include "launcher/job/events.h"
#include "launcher/job/gather.h"
#include "launcher/job/heartbeat.h"
#include "launcher/job/hooks.h"
#include "launcher/job/hosts.h"
#include "launcher/job/io.h"
#include "launcher/job/losses.h"
#include "launcher/job/messages.h"
#include "launcher/job/nodes.h"
#include "launcher/job/report.h"
#include "launcher/job/shutdown.h"
#include "launcher/job/signals.h"
#include "launcher/job/states.h"
#include "launcher/job/terminal.h"
#include "launcher/transport/node_starter.h"
#include "launcher/transport/program.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* ms: to kill orphans of an agent that was killed; to write the last lines; to send
 * SIGSTOP to all nodes before we stop */
enum { ORPHANS_MS = 3000, LAST_MS = 100, STOP_MS = 200 };

/* A scheduler sends SIGTERM to every process of its job, and the job's script forwards
 * it: a second SIGTERM within SAME_SIGNAL_MS is the same request. */
enum { SAME_SIGNAL_MS = 5000 };

/* --- signals ------------------------------------------------------------------------ */

static void on_end_signal(int sig, void *arg)
{
    struct job *j = arg;
    int64_t now = now_ms();
    if (JOB_HOOKS_ANY(j, signal, sig))
        return;
    if (sig == SIGTERM && j->requests.interrupts == 1 &&
        now - j->requests.interrupted_ms < SAME_SIGNAL_MS)
        return;
    j->requests.interrupted_ms = now;
    j->requests.interrupts++;
    if (j->requests.interrupts == 1)
        job_fail(j, (struct cause){.kind = CAUSE_SIGNAL,
                                   .rank = -1,
                                   .status = sig,
                                   .code = 128 + sig,
                                   .at_ns = now_ns()});
    else if (j->requests.interrupts == 2 && j->state <= JOB_DRAINING) {
        j->ending.urgent = true;
        job_end(j, SIGKILL, 0);
    } else
        loop_stop(j->loop, 128 + sig); /* agents exit when their links close */
}

static void on_pass_signal(int sig, void *arg)
{
    struct job *j = arg;
    bool harmless = sig == SIGWINCH || sig == SIGURG || sig == SIGSTOP || sig == SIGCONT;
    if (j->spawned_ns == 0 && !harmless) { /* no rank can have a handler for it */
        job_say(j, "ddprun: note: %s was not passed on: not all ranks have been started",
                signal_name(sig));
        return;
    }
    JOB_HOOKS(j, pass_signal, sig);
    if (sig == SIGWINCH && job_send_window(j)) /* its pseudo-terminal sends the signal */
        return;
    job_send(j, NODE_ALL, MSG(signal, (uint32_t)sig));
}

/* SIGSTOP, as the kernel discards SIGTSTP for orphaned process groups. */
static void on_stop_signal(void *arg)
{
    struct job *j = arg;
    int64_t deadline_ms = now_ms() + STOP_MS;
    on_pass_signal(SIGSTOP, j);
    EACH_NODE (j, n) {
        if (job_node_connected(n))
            link_flush(n->via, deadline_ms);
    }
    if (j->terminal)
        terminal_set(j->terminal, TERMINAL_OURS);
}

static void on_continued(void *arg)
{
    struct job *j = arg;
    on_pass_signal(SIGCONT, j);
    job_set_terminal(j);
    job_continue_streams(j);
}

static const struct signals_events signals_events = {
    on_end_signal,
    on_pass_signal,
    on_stop_signal,
    on_continued,
};

/* --- states ------------------------------------------------------------------------- */

static const struct job_table table = {
    .steps =
        {
            [JOB_NEW] = {"new", NULL, NULL, NULL},
            [JOB_GATHERING] = {"gathering", job_limit_gathering, job_late_gathering,
                               job_check_gathering},
            [JOB_PREPARING] = {"preparing", NULL, NULL, NULL},
            /* --timeout is for all attempts together */
            [JOB_RUNNING] = {"running", NULL, NULL, job_check_running},
            [JOB_TERMINATING] = {"terminating", job_limit_terminating, job_late_ending,
                                 job_check_ending},
            [JOB_DRAINING] = {"draining", job_limit_draining, job_late_ending,
                              job_check_ending},
            [JOB_LEAVING] = {"leaving", job_limit_leaving, job_late_leaving,
                             job_check_leaving},
            [JOB_FLUSHING] = {"flushing", job_limit_flushing, job_late_flushing,
                              job_check_flushing},
            [JOB_DONE] = {"done", NULL, NULL, NULL},
        },
    .frame = job_handle_frame,
    .link_closed = job_drop_link,
};

/* --- running ------------------------------------------------------------------------ */

const char *job_log_level(const struct opts *opts)
{
    return opts->log_level || !opts->verbose ? opts->log_level : "info";
}

/* Whose agent is a fork of ours; alloc->nnodes: none. */
static unsigned local_node(const struct job *j)
{
    unsigned i = 0;
    while (i < j->alloc->nnodes && !(job_forks_agent(j, i) && j->nodes[i].wanted))
        i++;
    return i;
}

bool job_wants_local_agent(const struct job *j)
{
    return local_node(j) < j->alloc->nnodes;
}

int job_run_agent(struct job *j, struct local_agent *self)
{
    struct agent_setup setup = {.fd = self->fd,
                                .node = local_node(j),
                                .lifelines = {-1, -1},
                                .orphaned = &self->orphaned};
    SCOPED(msg_share_finish) struct msg_share share = {0};
    SCOPED(agent_orders_finish)
    struct agent_orders orders = {.job = &j->job, .share = &share};
    if (job_is_local(j)) {
        JOB_HOOKS(j, local_orders, &orders);
        job_share_of(j, 0, &share);
        setup.orders = &orders;
    }
    return agent_run(&setup);
}

static void on_copy_gone(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    job_fail_text(j, CAUSE_NODE, EXIT_CANNOT_START,
                  xasprintf(COPY_GONE, j->alloc->nodes[0].name));
}

/* Create the loop and its events. */
static int job_open(struct job *j, struct ddp_err *err)
{
    if (!(j->loop = loop_create(err)) || !(j->reap = reap_create(j->loop, err)) ||
        !(j->requests.signals = signals_create(j->loop, &signals_events, j, err)))
        return -1;
    job_states_open(j);
    if (j->peers && j->peers->copies_gone_fd >= 0)
        j->requests.copy_gone =
            loop_watch(j->loop, j->peers->copies_gone_fd, EV_READ, on_copy_gone, j);
    j->control = control_create(j->loop, j->job.id);
    job_start_heartbeat(j);
    return job_plugins_open(j, err);
}

/* The agents of other hosts end with their transports. */
static enum kill_tree_rule spare_transports(const struct ancestry_proc *p, void *arg)
{
    const struct job *j = arg;
    return j->starter && node_starter_has_process(j->starter, p->pid)
               ? KILL_TREE_SPARE
               : kill_tree_pass_helpers(p, NULL);
}

static void on_local_exit(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                          void *arg)
{
    struct job *j = arg;
    j->local_pid = 0;
    if (j->state < JOB_LEAVING) {
        /* its ranks were reparented to us (subreaper): kill them */
        kill_tree_signal(SIGKILL, spare_transports, j);
        log_debug("our own agent has ended with status 0x%x", (unsigned)status);
    }
    if (WIFSIGNALED(status) && !j->ending.agents_killed)
        log_warn("the agent on this host died of %s", signal_name(WTERMSIG(status)));
    job_check(j);
}

static void watch_local(struct job *j, const struct local_agent *local)
{
    unsigned node = local_node(j);
    j->local_pid = local->pid;
    j->local = job_add_link(j, local->fd, NULL, node);
    if (job_is_local(j)) { /* it sends no HELLO */
        j->nodes[node].via = j->local;
        j->nodes[node].joined = true;
    }
    reap_watch(j->reap, local->pid, on_local_exit, j);
}

int job_run(struct job *j, const struct local_agent *local)
{
    struct ddp_err err;
    int rc = job_open(j, &err);
    if (rc == 0 && local->pid > 0)
        watch_local(j, local);
    if (rc == 0 && job_is_local(j)) {
        if ((rc = job_open_streams(j, &err)) == 0)
            job_started(j, "the agent has its assignment");
    } else if (rc == 0 && j->peers) {
        job_take_peers(j);
    } else if (rc == 0) {
        rc = job_gather(j, &err);
    }
    if (rc < 0) {
        fprintf(stderr, "ddprun: %s\n", err.text); /* agents exit as their links close */
        return EXIT_CANNOT_START;
    }
    int code = loop_run(j->loop);
    JOB_HOOKS(j, end, code);
    if (code == 0 && j->streams.failed) /* the hook could not write all events */
        code = 1;
    job_pass_error_on(j);
    if (j->output) /* the loop may have stopped before the last lines were written */
        output_flush(j->output, now_ms() + LAST_MS);
    kill_tree_reap(ORPHANS_MS); /* our children, if an agent was killed */
    return code;
}

/* --- life --------------------------------------------------------------------------- */

struct job *job_create(const struct opts *opts, struct alloc *alloc, struct peers *peers,
                       struct ddp_err *err)
{
    if (alloc->nnodes > NODES_MAX) {
        err_set(err, "%zu hosts are too many: %d are possible", alloc->nnodes, NODES_MAX);
        return NULL;
    }
    struct job *j = xcalloc(1, sizeof *j);
    *j = (struct job){.opts = opts,
                      .alloc = alloc,
                      .peers = peers,
                      .created_ns = now_ns(),
                      .table = &table,
                      .log_level = job_log_level(opts)};
    j->restart.max = opts->max_restarts;
    j->restart.spares = job_losses(j);
    job_make_room(j);
    j->nodes = xcalloc(alloc->nnodes, sizeof *j->nodes);
    for (size_t i = 0; i < alloc->nnodes; i++) {
        j->nodes[i].host = &alloc->nodes[i];
        j->nodes[i].place = -1;
        j->nodes[i].told = TOLD_NOTHING;
    }
    if (job_choose_transport(j, err) < 0 || job_plugins_init(j, err) < 0 ||
        job_describe(j, err) < 0 || job_plan(j, err) < 0) {
        job_destroy(j);
        return NULL;
    }
    return j;
}

void job_destroy(struct job *j)
{
    if (!j)
        return;
    job_close_links(j);
    job_plugins_fini(j);
    events_unsubscribe(j, NULL);
    control_destroy(j->control);
    node_starter_destroy(j->starter);
    msg_hosts_finish(&j->hosts);
    job_gather_close(j);
    job_close_streams(j);
    if (j->requests.signals)
        signals_block_ends();
    signals_destroy(j->requests.signals);
    heartbeat_destroy(j->beats.heartbeat);
    loop_free(j->requests.copy_gone);
    job_states_close(j);
    reap_destroy(j->reap);
    loop_destroy(j->loop);
    msg_job_finish(&j->job);
    EACH_NODE (j, n) {
        msg_hello_finish(&n->hello);
        free(n->trouble);
    }
    free(j->nodes);
    for (int i = 0; j->ranks && i < j->plan->nranks; i++)
        free(j->ranks[i].error);
    free(j->ranks);
    plan_destroy(j->plan);
    free(j);
}

void job_clean(const struct local_agent *local)
{
    if (local->orphaned)
        local_await_launcher(local);
    rundir_clean();
}
