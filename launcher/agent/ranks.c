/* launcher/agent/ranks.c - see ranks.h
 *
 * The program's path, the directory, the common environment and the CPU bindings are
 * determined once, before the first rank is started. That, and each start, is done in a
 * thread: exec of a program on a file system that does not answer blocks its caller.
 * `next` is the rank whose start is reported next; the thread has got that one and those
 * after it.
 */
#define LOG_SUBSYS "ranks"
#include "launcher/agent/ranks.h"

#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/agent/machine.h"

#include <errno.h>
#include <event2/buffer.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How many ranks the thread is given ahead; ms: when a slow start is reported. */
enum { AHEAD = 16, SLOW_MS = 10000 };

/* --- events of a rank's process ----------------------------------------------------- */

static size_t on_credit(size_t n, void *arg)
{
    struct ranks *r = arg;
    return n < r->credit ? n : (size_t)r->credit;
}

static void on_out(struct worker_proc *w, unsigned stream, const void *data, size_t n,
                   void *arg)
{
    struct ranks *r = arg;
    r->credit -= n;
    agent_send(r->agent,
               MSG(output, (uint32_t)worker_rank(w), stream, data, (uint32_t)n));
    if (n == 0)
        r->stream_ended(r->agent);
}

static void check_over(struct ranks *r)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] ? worker_state(r->workers[i]) != WORKER_EXITED : !r->stopped)
            return;
    }
    AGENT_HOOKS(r->agent, ranks_over);
}

static void on_exited(struct worker_proc *w, const struct msg_exit *how, void *arg)
{
    struct ranks *r = arg;
    struct msg_exit m = *how;
    uint32_t local = 0;
    while (local + 1 < r->share->nlocal && r->workers[local] != w)
        local++;
    m.stopped = r->agent->state != AGENT_ACTIVE;
    r->left[local] = !m.stopped;
    r->failed |= m.status != 0;
    if (m.status != 0 && !m.stopped) {
        uint64_t before = r->oom_kills;
        r->oom_kills = machine_oom_kills(); /* of a later failure only what comes later */
        m.oom_kills = r->oom_kills - before;
    }
    AGENT_HOOKS(r->agent, rank_exited, local, &m);
    agent_send(r->agent, MSG_EXIT, &m);
    check_over(r);
}

static bool takes_input(const struct ranks *r, uint32_t rank)
{
    return r->job->input == INPUT_ALL || (r->job->input == INPUT_RANK0 && rank == 0);
}

/* The size of the pseudo-terminal of this rank; NULL: it has none. */
static const struct pty_size *tty_of(const struct ranks *r, struct pty_size *size)
{
    *size = (struct pty_size){r->job->rows, r->job->columns};
    return size->rows > 0 ? size : NULL;
}

/* Report the minimum over the ranks that take input: the slowest one limits the rate. */
static void count_taken(struct ranks *r, uint32_t local, size_t n)
{
    uint64_t least = UINT64_MAX;
    r->taken[local] += n;
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (takes_input(r, r->share->ranks[i].rank) && r->taken[i] < least)
            least = r->taken[i];
    }
    if (least != UINT64_MAX && least > r->reported) {
        agent_send(r->agent, MSG(credit, (uint32_t)(least - r->reported)));
        r->reported = least;
    }
}

static void on_taken(struct worker_proc *w, size_t n, void *arg)
{
    struct ranks *r = arg;
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] == w)
            count_taken(r, i, n);
    }
}

static const struct worker_events worker_events = {
    on_credit,
    on_out,
    on_exited,
    on_taken,
};

/* --- preparation -------------------------------------------------------------------- */

/* Notes for one rank suffice: the last, as for the first an outer launcher's variables
 * may be right by chance (rank 0). */
static void make_last_env(struct ranks *r, uint32_t local, struct strv *env)
{
    bool last = local + 1 == r->share->nlocal && r->job->attempt == 0;
    rank_env_make(r->agent, r->prep, local, last && !r->single, env);
}

void ranks_env(struct ranks *r, uint32_t local, struct strv *env)
{
    rank_env_make(r->agent, r->prep, local, false, env);
}

static void give_up(struct ranks *r, uint32_t local, int code, const char *text)
{
    r->stopped = true;
    agent_cannot(r->agent, r->share->ranks[local].rank, code, text);
    background_drop(r->thread);
}

/* --- what the thread does ----------------------------------------------------------- */

/* While the thread has calls, children that are not watched are its own. */
static void give(struct ranks *r, struct background_call *c)
{
    if (r->starting == 0) {
        reap_hold(r->reap);
        loop_arm(r->slow, 1000);
    }
    r->starting++;
    background_run(r->thread, c);
}

static void take_back(struct ranks *r)
{
    r->warned = false;
    if (--r->starting > 0)
        return;
    event_del(r->slow);
    reap_release(r->reap);
}

static void on_slow(evutil_socket_t fd, short what, void *arg)
{
    struct ranks *r = arg;
    int64_t ms = background_busy_ms(r->thread);
    if (r->warned || ms < SLOW_MS)
        return;
    r->warned = true;
    if (r->next == r->until)
        return; /* one of the attempt before, which has been reported */
    const struct share_rank *sr = &r->share->ranks[r->next];
    const struct program *p = programs_of(&r->prep->programs, &r->job->apps, sr->rank);
    log_warn("rank %u on %s: %s '%s' in directory '%s' has taken %lld s (stalled file "
             "system?)",
             sr->rank, r->share->host, r->prepared ? "starting" : "looking for",
             r->prepared ? p->path : p->argv.v[0], r->job->wdir, (long long)ms / 1000);
}

static void on_prepared(struct background_call *c, bool ran)
{
    struct prepare *p = (struct prepare *)c;
    struct ranks *r = p->arg;
    struct ddp_err err;
    take_back(r);
    r->preparing = false;
    if (!ran || r->stopped) /* another attempt begins with it again, or the agent ends */
        return;
    if (p->code) {
        give_up(r, p->local, p->code, p->err.text);
        return;
    }
    for (size_t i = 0; i < p->programs.n; i++) {
        const struct program *one = &p->programs.p[i];
        if (one->path &&
            agent_plugins_program(r->agent, one->path, one->seen, &err) < 0) {
            give_up(r, one->local, EXIT_CANNOT_START, err.text);
            return;
        }
    }
    if (p->other_python && r->agent->job.attempt == 0)
        log_warn("%s", p->other_python);
    if (p->gloo_interface)
        log_info("this host's name resolves to a loopback address: Gloo is set to use %s",
                 p->gloo_interface);
    r->prepared = true;
    event_active(r->starter, EV_TIMEOUT, 0);
}

/* The rank runs: pass it the input received so far, which is at most INPUT_CREDIT. */
static void rank_runs(struct ranks *r, uint32_t local, struct worker_proc *w)
{
    size_t n = evbuffer_get_length(r->early);
    r->workers[local] = w;
    if (takes_input(r, r->share->ranks[local].rank)) {
        if (n > 0)
            worker_input(w, evbuffer_pullup(r->early, -1), n);
        if (r->early_end)
            worker_input(w, NULL, 0);
    }
    if ((int)local + 1 == r->until)
        evbuffer_drain(r->early, n);
}

/* --- starting ----------------------------------------------------------------------- */

static void start_next(struct ranks *r);

/* The last rank that was to be started runs. */
static void all_started(struct ranks *r)
{
    if (!r->single)
        agent_send(r->agent, MSG(spawned));
    singles_next(r);
}

/* A rank that started while the others were being stopped gets the same signal: it may
 * already run, and handle the signal. Before the first one (0) nothing is sent: TERMINATE
 * comes. */
static void adopt(struct ranks *r, const struct rank_start *s)
{
    worker_adopt(s->worker, s->pid, s->pidfd);
    rank_runs(r, s->local, s->worker);
    r->next++;
    if (r->stopped)
        worker_signal(s->worker, r->agent->end_sig);
    else if (r->next == r->until)
        all_started(r);
    else
        start_next(r);
}

static void on_started(struct background_call *c, bool ran)
{
    struct rank_start *s = (struct rank_start *)c;
    struct ranks *r = s->arg;
    bool now = s->attempt == r->attempt;
    take_back(r);
    r->ahead -= now;
    now &= r->agent->state < AGENT_DRAINING;
    if (ran && s->pid > 0 && now) {
        adopt(r, s);
        s->worker = NULL;
    } else if (ran && s->pid > 0) { /* it was left behind */
        kill(s->pid, SIGKILL);
        close_fd(&s->pidfd);
    } else if (ran && now && !r->stopped) {
        give_up(r, s->local, s->code, s->err.text);
    }
    worker_destroy(s->worker);
    rank_start_free(s);
}

/* The process to be of a local rank, with its streams. NULL: out of descriptors. */
static struct worker_proc *open_rank(struct ranks *r, uint32_t local, struct next_rank *n)
{
    uint32_t rank = r->share->ranks[local].rank;
    struct pty_size size;
    struct worker_proc *w = worker_create(r->loop, r->reap, (int)rank, &worker_events, r);
    *n = (struct next_rank){.extra = -1};
    if (worker_open(w, takes_input(r, rank), tty_of(r, &size), n->streams) < 0) {
        int saved = errno;
        worker_destroy(w);
        errno = saved;
        return NULL;
    }
    make_last_env(r, local, &n->env);
    n->extra = agent_plugins_rank_fd(r->agent, local);
    return w;
}

static void start_one(struct ranks *r, uint32_t local)
{
    struct rank_start *s = xcalloc(1, sizeof *s);
    *s = (struct rank_start){
        .call = {rank_start_run, on_started, NULL},
        .arg = r,
        .local = local,
        .attempt = r->attempt,
        .prep = r->prep,
        .program =
            programs_of(&r->prep->programs, &r->job->apps, r->share->ranks[local].rank),
        .binding = &r->prep->bindings[local],
        .place = r->place,
        .order_fd = r->order_fd,
        .pidfd = -1,
        .terminal = r->job->rows > 0,
    };
    s->worker = open_rank(r, local, &s->next);
    if (!s->worker) {
        struct ddp_err err;
        int code = program_failed(s->program->argv.v[0], s->program->path, s->prep->wdir,
                                  s->prep->host, CHILD_SETUP, &err);
        give_up(r, local, code, err.text);
        rank_start_free(s);
        return;
    }
    r->ahead++;
    give(r, &s->call);
}

/* Give the thread as many as it may have. */
static void start_next(struct ranks *r)
{
    while (!r->stopped && r->ahead < AHEAD && r->next + r->ahead < r->until)
        start_one(r, (uint32_t)(r->next + r->ahead));
}

static void start(struct ranks *r)
{
    if (r->stopped || r->preparing)
        return;
    if (!r->prepared) {
        prepare_free(r->prep);
        r->prep = prepare_create(r->agent);
        r->prep->call = (struct background_call){prepare_run, on_prepared, NULL};
        r->prep->arg = r;
        r->preparing = true;
        give(r, &r->prep->call);
        return;
    }
    r->stopped |= r->share->standby;
    if (!AGENT_HOOKS_ANY(r->agent, start))
        start_next(r);
}

static void on_start(evutil_socket_t fd, short what, void *arg)
{
    start(arg);
}

/* --- started by a plug-in ----------------------------------------------------------- */

int ranks_next(struct ranks *r, struct next_rank *n)
{
    r->opened = open_rank(r, (uint32_t)r->next, n);
    return r->opened ? 0 : -1;
}

bool ranks_adopt(struct ranks *r, pid_t pid)
{
    worker_adopt(r->opened, pid, -1);
    rank_runs(r, (uint32_t)r->next, r->opened);
    r->opened = NULL;
    r->next++;
    bool last = r->next == r->until;
    if (last)
        all_started(r);
    return last;
}

void ranks_resume(struct ranks *r)
{
    worker_destroy(r->opened);
    r->opened = NULL;
    if (r->next < r->until)
        event_active(r->starter, EV_TIMEOUT, 0);
}

/* --- interface ---------------------------------------------------------------------- */

/* Discard the buffered input, counting it as taken by the ranks that never started. */
static void forget_input(struct ranks *r)
{
    size_t n = evbuffer_get_length(r->early);
    evbuffer_drain(r->early, n);
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (!r->workers[i] && n > 0)
            count_taken(r, i, n);
    }
}

void ranks_stop_starting(struct ranks *r, bool again)
{
    r->stopped = true;
    background_drop(r->thread);
    worker_destroy(r->opened);
    r->opened = NULL;
    if (again && r->next > 0)
        forget_input(r);
    check_over(r);
}

void ranks_again(struct ranks *r)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        worker_destroy(r->workers[i]);
        r->workers[i] = NULL;
        r->left[i] = false;
    }
    singles_forget(r);
    r->next = r->ahead = 0;
    r->attempt++;
    if (r->starting == 0) /* else a call that hangs uses it */
        r->prepared = r->prepared && prepare_fits(r->prep, r->agent);
    r->stopped = r->failed = false;
    r->oom_kills = machine_oom_kills();
    event_active(r->starter, EV_TIMEOUT, 0);
}

/* SIGCHLD is blocked meanwhile: each rank that ends at once would interrupt the loop, and
 * the last ranks would get their signal later. */
void ranks_signal(struct ranks *r, int sig)
{
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i])
            worker_signal(r->workers[i], sig);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ranks_resize(struct ranks *r)
{
    struct pty_size size;
    for (uint32_t i = 0; tty_of(r, &size) && i < r->share->nlocal; i++) {
        if (r->workers[i])
            worker_resize(r->workers[i], &size);
    }
}

bool ranks_running(const struct ranks *r)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] && worker_state(r->workers[i]) == WORKER_RUNS)
            return true;
    }
    return false;
}

bool ranks_succeeded(const struct ranks *r)
{
    return r->next == r->until && !r->failed && !ranks_running(r);
}

bool ranks_has_left(const struct ranks *r, pid_t group)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->left[i] && (group == 0 || worker_group(r->workers[i]) == group))
            return true;
    }
    return false;
}

bool ranks_starting(const struct ranks *r)
{
    return r->prepared && r->starting > 0;
}

pid_t ranks_pid(const struct ranks *r, uint32_t local)
{
    return r && r->workers[local] ? worker_pid(r->workers[local]) : 0;
}

bool ranks_has_group(const struct ranks *r, pid_t group)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] && worker_pid(r->workers[i]) == group)
            return true;
    }
    return false;
}

void ranks_credit(struct ranks *r, uint32_t n)
{
    bool none = r->credit == 0;
    r->credit += n;
    for (uint32_t i = 0; none && i < r->share->nlocal; i++) {
        if (r->workers[i])
            worker_resume(r->workers[i]);
    }
    for (size_t i = 0; none && i < r->nformer; i++)
        worker_resume(r->former[i]);
}

void ranks_input(struct ranks *r, const void *data, size_t n)
{
    if (r->next < r->until && n > 0)
        evbuffer_add(r->early, data, n);
    r->early_end |= n == 0;
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] && takes_input(r, r->share->ranks[i].rank))
            worker_input(r->workers[i], data, n);
    }
}

struct ranks *ranks_create(struct agent *a, void (*stream_ended)(struct agent *a),
                           struct ddp_err *err)
{
    struct ranks *r = xcalloc(1, sizeof *r);
    const struct msg_share *share = &a->share;
    *r = (struct ranks){.agent = a,
                        .stream_ended = stream_ended,
                        .loop = a->loop,
                        .reap = a->reap,
                        .job = &a->job,
                        .share = share,
                        .credit = a->job.credit};
    r->workers = xcalloc(share->nlocal, sizeof *r->workers);
    r->left = xcalloc(share->nlocal, sizeof *r->left);
    r->taken = xcalloc(share->nlocal, sizeof *r->taken);
    r->until = (int)share->nlocal;
    r->starter = loop_timer(r->loop, on_start, r);
    r->slow = loop_event(r->loop, -1, EV_PERSIST, on_slow, r);
    r->early = evbuffer_new();
    if (!r->early)
        abort();
    r->order_fd = reap_order_fd(a->reap);
    if (!(r->place = child_place_create(share->nlocal, err)) ||
        !(r->thread = background_create(r->loop, err))) {
        ranks_destroy(r);
        return NULL;
    }
    start(r);
    r->oom_kills = machine_oom_kills(); /* while the thread prepares the start */
    return r;
}

/* If a call does not return, what it uses is never freed; children that end meanwhile
 * are reaped all the same. */
static void end_thread(struct ranks *r)
{
    if (!background_end(r->thread)) {
        reap_release(r->reap);
        return;
    }
    child_place_destroy(r->place);
    prepare_free(r->prep);
    close_fd(&r->order_fd);
}

void ranks_destroy(struct ranks *r)
{
    if (!r)
        return;
    r->stopped = true;
    end_thread(r);
    worker_destroy(r->opened);
    for (uint32_t i = 0; i < r->share->nlocal; i++)
        worker_destroy(r->workers[i]);
    singles_forget(r);
    free(r->former);
    free(r->workers);
    free(r->taken);
    free(r->left);
    loop_free(r->starter);
    loop_free(r->slow);
    evbuffer_free(r->early);
    free(r);
}
