/* launcher/job.c - see job.h
 *
 * States, what moves them, and how they end.
 *
 *     new -> gathering -> preparing -> running -> ending -> leaving -> done
 *      |                    ^             ^         ^ |
 *      |                    |             |         | +---- with --max-restarts: back to
 *      |                    +-------------|---------|-----  preparing
 *      +--------- all on this machine ----+         +---- from any state, on failure
 */
#define LOG_SUBSYS "job"
#include "launcher/job_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/sweep.h"
#include "launcher/preflight/preflight.h"
#include "launcher/signals.h"
#include "launcher/spawn/program.h"
#include "launcher/spawn/starter.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

/* Deadlines of the end, ms: for the headline when ranks are slow to end; for agents to
 * leave; and how often an output that is not taken is offered again. */
enum { REPORT_MS = 500, LEAVE_MS = 3000, FLUSH_MS = 50 };

static const char *const state_names[] = {"new",    "gathering", "preparing", "running",
                                          "ending", "leaving",   "done"};

void job_move(struct job *j, enum job_state to, const char *why)
{
    log_debug("%s -> %s: %s", state_names[j->state], state_names[to], why);
    j->state = to;
}

/* --- sending ------------------------------------------------------------------------ */

static bool node_is_there(const struct job_node *n)
{
    return n->via && !n->lost;
}

static bool link_seen_before(const struct job *j, size_t node)
{
    for (size_t i = 0; i < node; i++) {
        if (node_is_there(&j->nodes[i]) && j->nodes[i].via == j->nodes[node].via)
            return true;
    }
    return false;
}

void job_send(struct job *j, unsigned node, enum msg_type type, const struct pack *k)
{
    if (node != NODE_ALL) {
        if (node_is_there(&j->nodes[node]))
            link_send_pack(j->nodes[node].via, type, node, k);
        return;
    }
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (node_is_there(&j->nodes[i]) && !link_seen_before(j, i))
            link_send_pack(j->nodes[i].via, type, NODE_ALL, k);
    }
}

/* --- the end ------------------------------------------------------------------------ */

void job_arm(struct event *timer, int64_t ms)
{
    event_add(timer, &(struct timeval){ms / 1000, ms % 1000 * 1000});
}

void job_end(struct job *j, int sig, int64_t grace_ms)
{
    struct pack k = {0};
    pack_u32(&k, (uint32_t)sig);
    pack_u32(&k, (uint32_t)(grace_ms > 0 ? grace_ms : 0));
    pack_u8(&k, j->restart.pending);
    job_send(j, NODE_ALL, MSG_END, &k);
    pack_finish(&k);
    if (j->state < JOB_ENDING) {
        job_move(j, JOB_ENDING,
                 j->cause.kind == CAUSE_NONE ? "all ranks are done" : "something failed");
        if (j->cause.kind != CAUSE_NONE)
            job_arm(j->report_timer, REPORT_MS);
    }
    job_check(j);
}

/* The present attempt's failure is told; the next cause will be another's. */
static void forget_cause(struct job *j)
{
    job_report_failure(j);
    event_del(j->report_timer);
    free(j->cause.text);
    j->cause = (struct cause){0};
    j->reported = false;
}

void job_fail(struct job *j, struct cause c)
{
    /* no other attempt any more: what is in its way is what ends the job */
    bool cancelled = restart_cancelled(&j->restart, &c);
    if (cancelled)
        forget_cause(j);
    bool first = cause_before(&c, &j->cause) && !restart_ignores(&j->restart, &c);
    if (!j->reported && first) {
        free(j->cause.text);
        j->cause = c;
    } else {
        free(c.text);
    }
    if (j->state < JOB_ENDING || cancelled) {
        bool by_int = c.kind == CAUSE_SIGNAL && c.status == SIGINT;
        if (cancelled)
            job_arm(j->report_timer, REPORT_MS);
        else
            restart_asked(&j->restart, &c);
        job_end(j, by_int ? SIGINT : SIGTERM, j->opts->grace_ms);
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

static void job_done(struct job *j)
{
    if (j->opts->report && j->ready_ns > 0)
        job_report_summary(j);
    job_move(j, JOB_DONE, "nothing is left");
    loop_stop(j->loop, exit_code(j));
}

static void job_leave(struct job *j)
{
    job_report_failure(j);
    job_move(j, JOB_LEAVING, "every node has ended its ranks");
    struct pack k = {0};
    pack_u32(&k, (uint32_t)exit_code(j));
    job_send(j, NODE_ALL, MSG_LEAVE, &k);
    pack_finish(&k);
    if (j->starter)
        starter_stop(j->starter);
    job_arm(j->leave_timer, LEAVE_MS);
    job_check(j);
}

static bool all_ended(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (node_is_there(&j->nodes[i]) && !j->nodes[i].ended)
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
    return j->local_pid == 0 && (!j->starter || starter_is_idle(j->starter));
}

/* All ranks once more, on the same agents. The store is first, as ever: its key space,
 * or with --store rank0 its port, is a new one (start.c goes on from there). */
static void job_again(struct job *j)
{
    forget_cause(j);
    restart_next(&j->restart);
    char *label = restart_label(&j->restart);
    char *line = xasprintf("ddprun: all ranks are started again%s", label);
    job_say(j, line);
    free(line);
    free(label);
    output_renew(j->output);
    job_forget_meetings(j);
    for (int r = 0; r < j->plan->nranks; r++) {
        free(j->ranks[r].error);
        j->ranks[r] = (struct job_rank){0};
    }
    j->running = j->plan->nranks;
    j->spawned_nodes = 0;
    j->spawned_ns = j->last_exit_ns = 0;
    job_move(j, JOB_PREPARING, "another attempt begins");
    job_send_store(j);
}

void job_check(struct job *j)
{
    if (j->state == JOB_RUNNING && j->running == 0)
        job_end(j, SIGTERM, j->opts->grace_ms);
    else if (j->state == JOB_ENDING && all_ended(j) && j->restart.pending)
        job_again(j);
    else if (j->state == JOB_ENDING && all_ended(j))
        job_leave(j);
    else if (j->state == JOB_LEAVING && all_left(j)) {
        if (!j->output || j->output_failed ||
            output_flush(j->output, now_ms() + FLUSH_MS) == 0)
            job_done(j);
        else
            job_arm(j->leave_timer, FLUSH_MS);
    }
}

/* Agents that do not leave are made to: ours by a signal, others by their lifelines. */
static void on_leave_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    if (j->local_pid > 0)
        kill(j->local_pid, SIGKILL);
    if (j->starter)
        starter_kill(j->starter);
    for (size_t i = 0; i < j->alloc->nnodes; i++)
        j->nodes[i].via = NULL;
    job_arm(j->leave_timer, LEAVE_MS);
    job_check(j);
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

/* --- links and nodes ---------------------------------------------------------------- */

void job_node_lost(struct job *j, unsigned node, const char *why)
{
    struct job_node *n = &j->nodes[node];
    if (n->lost)
        return;
    n->lost = true;
    for (int r = 0; j->plan && r < j->plan->nranks; r++) {
        if (n->place == j->plan->ranks[r].node && j->ranks[r].state != RANK_EXITED) {
            j->ranks[r].state = RANK_EXITED;
            j->running--;
        }
    }
    if (j->preflight && j->state == JOB_PREPARING)
        preflight_lost(j->preflight, node, why);
    else if (j->state < JOB_LEAVING)
        job_fail_text(j, CAUSE_NODE, EXIT_CANNOT_START,
                      xasprintf("%s is lost: %s", n->host->name, why));
    job_check(j);
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    job_hear(arg, l, f);
}

static void forget_link(struct job *j, struct link *l)
{
    struct job_link *jl;
    LL_SEARCH_SCALAR(j->links, jl, link, l);
    LL_DELETE(j->links, jl);
    free(jl);
    if (l == j->local)
        j->local = NULL;
}

static void on_link_closed(struct link *l, const char *why, void *arg)
{
    struct job *j = arg;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].via != l)
            continue;
        j->nodes[i].via = NULL;
        if (j->state < JOB_LEAVING)
            job_node_lost(j, i, why ? why : "its agent has ended");
    }
    forget_link(j, l);
    link_close(l);
    job_check(j);
}

struct link *job_add_link(struct job *j, int fd, const struct link_keys *keys)
{
    static const struct link_events events = {on_frame, on_link_closed, NULL};
    struct job_link *jl = xcalloc(1, sizeof *jl);
    jl->link = link_create(j->loop, fd, FRAME_UP, keys, &events, j);
    LL_PREPEND(j->links, jl);
    return jl->link;
}

static void on_local_exit(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                          void *arg)
{
    struct job *j = arg;
    j->local_pid = 0;
    if (j->state < JOB_LEAVING) {
        /* what it leaves behind is ours now, and nobody else will end it */
        sweep_signal(SIGKILL, NULL, NULL);
        log_debug("our own agent has ended with status 0x%x", (unsigned)status);
    }
    job_check(j);
}

/* --- output and input --------------------------------------------------------------- */

static void on_room(void *arg)
{
    struct job *j = arg;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].owed == 0)
            continue;
        struct pack k = {0};
        pack_u32(&k, j->nodes[i].owed);
        j->nodes[i].owed = 0;
        job_send(j, i, MSG_CREDIT, &k);
        pack_finish(&k);
    }
}

static void on_output_lost(enum out_stream stream, bool reader_left, const char *why,
                           void *arg)
{
    struct job *j = arg;
    if (reader_left && stream == OUT_STDOUT) {
        /* as for any program in a pipe */
        j->output_failed = true;
        job_fail_text(j, CAUSE_OUTPUT, 128 + SIGPIPE, NULL);
    } else if (!reader_left) {
        j->output_failed = true;
        char *line = xasprintf("ddprun: %s", why);
        job_say(j, line);
        free(line);
    }
}

static bool gets_input(const struct job *j, size_t node)
{
    const struct job_node *n = &j->nodes[node];
    return n->place >= 0 && node_is_there(n) &&
           (j->opts->input == INPUT_ALL || n->place == j->plan->ranks[0].node);
}

static void on_input(const void *data, size_t size, void *arg)
{
    struct job *j = arg;
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (!gets_input(j, i))
            continue;
        link_send(j->nodes[i].via, MSG_INPUT, i, data, size, NULL, 0);
        j->nodes[i].input_sent += (uint32_t)size;
    }
    j->input_window -= size;
    const char *bytes = data;
    if (size > 0 && bytes[size - 1] == '\n' && isatty(STDIN_FILENO))
        output_typed(j->output);
}

/* The node that lags most sets how much more may be read. */
void job_input_more(struct job *j)
{
    size_t behind = 0;
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (gets_input(j, i) && j->nodes[i].input_sent > behind)
            behind = j->nodes[i].input_sent;
    }
    if (j->input && behind + j->input_window < INPUT_CREDIT) {
        size_t more = INPUT_CREDIT - behind - j->input_window;
        j->input_window += more;
        input_credit(j->input, more);
    }
}

/* --- signals ------------------------------------------------------------------------ */

static void on_end_signal(int sig, void *arg)
{
    struct job *j = arg;
    j->interrupts++;
    if (j->interrupts == 1)
        job_fail(j, (struct cause){.kind = CAUSE_SIGNAL,
                                   .rank = -1,
                                   .status = sig,
                                   .code = 128 + sig,
                                   .at_ns = now_ns()});
    else if (j->interrupts == 2 && j->state <= JOB_ENDING)
        job_end(j, SIGKILL, 0);
    else
        loop_stop(j->loop, 128 + sig); /* agents end with us: their links close */
}

static void on_pass_signal(int sig, void *arg)
{
    struct pack k = {0};
    pack_u32(&k, (uint32_t)sig);
    job_send(arg, NODE_ALL, MSG_SIGNAL, &k);
    pack_finish(&k);
}

/* The ranks are no terminal's foreground, so the kernel would ignore a TSTP for them. */
static void on_stop_signal(void *arg)
{
    struct job *j = arg;
    on_pass_signal(SIGSTOP, j);
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (node_is_there(&j->nodes[i]))
            link_flush(j->nodes[i].via, now_ms() + 200);
    }
}

static void on_continued(void *arg)
{
    struct job *j = arg;
    on_pass_signal(SIGCONT, j);
    if (j->input)
        input_continue(j->input);
}

static const struct signals_events signals_events = {
    on_end_signal,
    on_pass_signal,
    on_stop_signal,
    on_continued,
};

/* --- running ------------------------------------------------------------------------ */

const char *job_log_level(const struct opts *opts)
{
    return opts->log_level || !opts->verbose ? opts->log_level : "info";
}

bool job_wants_local_agent(const struct job *j)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (job_forks(j, i) && j->nodes[i].wanted)
            return true;
    }
    return false;
}

static unsigned local_node(const struct job *j)
{
    unsigned i = 0;
    while (!job_forks(j, i) || !j->nodes[i].wanted)
        i++;
    return i;
}

int job_be_agent(struct job *j, const struct local_agent *self)
{
    struct agent_setup setup = {
        .fd = self->fd, .node = local_node(j), .lifelines = {-1, -1}};
    struct msg_store store = {0};
    struct msg_share share = {0};
    struct agent_orders orders = {.store = &store, .job = &j->job, .share = &share};
    if (job_all_here(j)) {
        job_store_wanted(j, "127.0.0.1", &store);
        job_share_of(j, 0, &share);
        setup.orders = &orders;
    }
    int code = agent_run(&setup);
    msg_store_finish(&store);
    msg_share_finish(&share);
    return code;
}

/* The loop and everything in it. */
static int job_open(struct job *j, struct ddp_err *err)
{
    struct event_base *base;
    if (!(j->loop = loop_create(err)) || !(j->reap = reap_create(j->loop, err)) ||
        !(j->signals = signals_create(j->loop, &signals_events, j, err)))
        return -1;
    base = loop_base(j->loop);
    j->timeout = evtimer_new(base, on_timeout, j);
    j->report_timer = evtimer_new(base, on_report, j);
    j->leave_timer = evtimer_new(base, on_leave_deadline, j);
    if (!j->timeout || !j->report_timer || !j->leave_timer)
        return err_set(err, "cannot make an event");
    if (j->opts->preflight)
        j->preflight = preflight_create(j);
    return 0;
}

/* Through the queue of our stderr, so that they never stand in a rank's line. */
static void on_log_line(enum log_level level, const char *line, void *arg)
{
    job_say(arg, line);
}

int job_open_streams(struct job *j, struct ddp_err *err)
{
    j->output =
        output_create(j->loop, j->opts, j->plan->nranks, job_host_of, on_room, j, err);
    if (!j->output)
        return -1;
    output_on_lost(j->output, on_output_lost, j);
    log_sink(on_log_line, j);
    if (j->opts->store_open)
        job_say(j, "ddprun: --store-open: whoever reaches the store's port may read and "
                   "change its keys");
    if (j->opts->input != INPUT_NONE)
        j->input = input_create(j->loop, STDIN_FILENO, on_input, j);
    return 0;
}

void job_started(struct job *j, const char *why)
{
    job_move(j, JOB_RUNNING, why);
    j->started_ns = now_ns();
    if (j->opts->timeout_ms > 0 && j->restart.attempt == 0) /* it is for all of them */
        job_arm(j->timeout, j->opts->timeout_ms);
    job_input_more(j);
}

static void watch_local(struct job *j, const struct local_agent *local)
{
    unsigned node = local_node(j);
    j->local_pid = local->pid;
    j->local = job_add_link(j, local->fd, NULL);
    if (job_all_here(j)) /* it does not say hello */
        j->nodes[node].via = j->local;
    reap_watch(j->reap, local->pid, on_local_exit, j);
}

int job_run(struct job *j, const struct local_agent *local)
{
    struct ddp_err err;
    int rc = job_open(j, &err);
    if (rc == 0 && local->pid > 0)
        watch_local(j, local);
    if (rc == 0 && job_all_here(j)) {
        if ((rc = job_open_streams(j, &err)) == 0)
            job_started(j, "the agent has its orders");
    } else if (rc == 0 && (rc = job_start_pulse(j, &err)) == 0) {
        rc = j->peers ? job_take_peers(j, &err) : job_gather(j, &err);
    }
    if (rc < 0) {
        fprintf(stderr, "ddprun: %s\n", err.text); /* agents end as their links close */
        return EXIT_CANNOT_START;
    }
    int code = loop_run(j->loop);
    sweep_out(now_ms() + LEAVE_MS); /* orphans of an agent that was killed are ours */
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
    *j = (struct job){
        .opts = opts, .alloc = alloc, .peers = peers, .created_ns = now_ns()};
    j->restart.max = opts->max_restarts;
    j->nodes = xcalloc(alloc->nnodes, sizeof *j->nodes);
    for (size_t i = 0; i < alloc->nnodes; i++) {
        j->nodes[i].host = &alloc->nodes[i];
        j->nodes[i].place = -1;
    }
    if (job_choose_transport(j, err) < 0 || job_describe(j, err) < 0 ||
        job_plan(j, err) < 0) {
        job_destroy(j);
        return NULL;
    }
    return j;
}

static void free_events(struct job *j)
{
    struct event *events[] = {j->timeout, j->report_timer,    j->leave_timer,
                              j->settle,  j->gather_deadline, j->beat};
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (events[i])
            event_free(events[i]);
    }
}

void job_destroy(struct job *j)
{
    if (!j)
        return;
    struct job_link *jl, *next;
    LL_FOREACH_SAFE(j->links, jl, next)
    {
        link_destroy(jl->link);
        free(jl);
    }
    preflight_destroy(j->preflight);
    starter_destroy(j->starter);
    msg_hosts_finish(&j->hosts);
    secret_wipe(&j->key, sizeof j->key);
    free(j->here);
    input_destroy(j->input);
    if (j->output)
        log_sink(NULL, NULL);
    output_destroy(j->output);
    signals_destroy(j->signals);
    free_events(j);
    reap_destroy(j->reap);
    loop_destroy(j->loop);
    msg_job_finish(&j->job);
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        msg_hello_finish(&j->nodes[i].hello);
        free(j->nodes[i].trouble);
    }
    free(j->nodes);
    for (int i = 0; j->ranks && i < j->plan->nranks; i++)
        free(j->ranks[i].error);
    free(j->ranks);
    job_forget_meetings(j);
    plan_destroy(j->plan);
    free(j->cause.text);
    free(j);
}
