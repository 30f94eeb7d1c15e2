/* launcher/agent/ranks.c - see ranks.h
 *
 * The program's path, the directory, the common environment and the CPU bindings are
 * determined once, before the first rank is started.
 */
#define LOG_SUBSYS "ranks"
#include "launcher/agent/ranks.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/offload.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/agent/machine.h"
#include "launcher/contract.h"
#include "launcher/place/bind.h"

#include <errno.h>
#include <event2/buffer.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

/* Limits of one batch: ranks, and ms (a slow file system). Starting a rank blocks the
 * loop (transport/child.c). */
enum { BATCH = 64, BATCH_MS = 50 };

/* ms: the limit for finding the program, the interval at which the thread is checked, and
 * how long the loop blocks for it at first, which nearly always suffices */
enum { SEARCH_MS = 20000, SEARCH_POLL_MS = 50, SEARCH_WAIT_MS = 20 };

static const char *host_label(const struct ranks *r)
{
    return r->job->nnodes > 1 ? r->share->host : NULL;
}

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
    agent_out(r->agent, worker_rank(w), stream, data, n);
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
    uint32_t local = 0;
    while (local + 1 < r->share->nlocal && r->workers[local] != w)
        local++;
    agent_exited(r->agent, local, how);
    check_over(r);
}

static bool takes_input(const struct ranks *r, uint32_t rank)
{
    return r->job->input == INPUT_ALL || (r->job->input == INPUT_RANK0 && rank == 0);
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

static void on_env_note(const struct env_note *n, void *arg)
{
    static const char *const what[] = {"set", "replaced", "kept as it was", "removed"};
    const struct ranks *r = arg;
    if (n->user && n->origin == ENV_REPLACED && r->share->node_rank == 0)
        log_warn("-x %s=%s is ignored: ddprun sets it for each rank", n->name, n->old);
    else if (n->origin != ENV_SET)
        log_info("environment: %s %s%s%s%s", n->name, what[n->origin],
                 n->old ? " ('" : "", n->old ? n->old : "", n->old ? "')" : "");
}

static const char tf_format[] = "{\"cluster\": {\"worker\": [%s]}, \"task\": "
                                "{\"type\": \"worker\", \"index\": %u}}";

/* With `note`, changes to the user's own variables are logged. */
static void make_env(struct ranks *r, uint32_t local, bool note, struct strv *env)
{
    const struct msg_job *job = r->job;
    const struct share_rank *sr = &r->share->ranks[local];
    const struct binding *b = &r->bindings[local];
    char *tf_config =
        job->tf_workers ? xasprintf(tf_format, job->tf_workers, sr->rank) : NULL;
    struct rank_facts facts = {
        .node_list = job->node_list,
        .tasks_per_node = job->tasks_per_node,
        .tf_config = tf_config,
        .tracker_port = (int)job->tracker_port,
        .rank = (int)sr->rank,
        .size = (int)job->nranks,
        .local_rank = (int)local,
        .local_size = (int)r->share->nlocal,
        .node_rank = (int)r->share->node_rank,
        .nnodes = (int)job->nnodes,
        .cross_rank = (int)sr->cross_rank,
        .cross_size = (int)sr->cross_size,
        .hostname = r->share->host,
        .master_addr = job->master_addr,
        .master_port = (int)job->master_port,
        .rank0_port = (int)job->rank0_port,
        .job_id = job->id,
        .restart_count = (int)job->attempt,
        .max_restarts = (int)job->max_restarts,
        .ncpus = b->ncpus,
        .gpu = b->gpu_text,
        .interface = job->interface,
        .gloo_interface = r->gloo_interface,
        .columns = (int)job->columns,
        .rank_names = job->rank_names,
        .store = (enum store_mode)job->store_mode,
    };
    AGENT_HOOKS(r->agent, rank_facts, local, &facts);
    contract_apply(&facts, &r->base, &job->user_set, env, note ? on_env_note : NULL, r);
    free(tf_config);
    AGENT_HOOKS(r->agent, rank_env, local, env);
}

void ranks_env(struct ranks *r, uint32_t local, struct strv *env)
{
    make_env(r, local, false, env);
}

/* Notes for one rank suffice: the last, as for the first an outer launcher's variables
 * may be right by chance (rank 0). */
static void make_last_env(struct ranks *r, uint32_t local, struct strv *env)
{
    make_env(r, local, local + 1 == r->share->nlocal && r->job->attempt == 0, env);
}

/* The agent's own variables, overridden by those from the launcher; or only the latter.
 */
static void make_base(struct ranks *r)
{
    if (!r->job->env_complete) {
        strv_push_all(&r->base, environ);
        for (size_t i = 0; i < r->job->env.n; i++) {
            char *name = xstrdup(r->job->env.v[i]), *eq = strchr(name, '=');
            if (eq) {
                *eq = '\0';
                strv_env_set(&r->base, name, eq + 1);
            }
            free(name);
        }
    } else {
        strv_push_all(&r->base, r->job->env.v);
    }
}

static void give_up(struct ranks *r, int code, const char *text)
{
    uint32_t rank = r->share->ranks[r->next].rank;
    r->stopped = true;
    agent_cannot(r->agent, rank, code, text);
}

/* --- file servers that do not answer ---------------------------------------------- */

struct search {
    char *name, *dir, *path; /* owned by the thread */
};

/* In a thread, as it may hang in a file system: access the files that prepare() needs. */
static void search(void *arg)
{
    struct search *s = arg;
    int code;
    struct ddp_err err;
    free(program_find(s->name, s->dir, s->path, NULL, &code, &err));
    free(s->name);
    free(s->dir);
    free(s->path);
}

/* True: prepare() will not hang. Otherwise re-arms the starter, or gives up. */
static bool files_answer(struct ranks *r)
{
    if (r->searched)
        return true;
    int64_t wait_ms = 0;
    if (!r->search) {
        make_base(r);
        const char *path = strv_env_get(&r->base, "PATH");
        struct search s = {xstrdup(r->job->argv.v[0]), xstrdup(r->job->wdir),
                           path ? xstrdup(path) : NULL};
        r->search = offload_begin(search, &s, sizeof s, NULL);
        if (!r->search) /* no thread: prepare() may hang */
            search(&s);
        r->search_until_ms = now_ms() + SEARCH_MS;
        wait_ms = SEARCH_WAIT_MS;
    }
    r->searched = !r->search || offload_wait(r->search, wait_ms);
    if (r->searched)
        return true;
    if (now_ms() < r->search_until_ms) {
        event_add(r->starter, &(struct timeval){.tv_usec = SEARCH_POLL_MS * 1000});
        return false;
    }
    struct ddp_err err;
    err_set(
        &err,
        "cannot start in directory '%s'%s%s: its file system, or one of PATH, has not "
        "answered for %d s",
        r->job->wdir, host_label(r) ? " on " : "", host_label(r) ? r->share->host : "",
        SEARCH_MS / 1000);
    give_up(r, EXIT_CANNOT_START, err.text);
    return false;
}

static int prepare(struct ranks *r)
{
    struct ddp_err err;
    int code;
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        struct program *p = programs_of(&r->programs, r->share->ranks[i].rank);
        if (p->path)
            continue;
        p->path = program_find(p->argv.v[0], r->job->wdir, strv_env_get(&r->base, "PATH"),
                               host_label(r), &code, &err);
        if (p->path && agent_plugins_program(r->agent, p->path, &r->base, &err) < 0)
            code = EXIT_CANNOT_START;
        else if (p->path)
            continue;
        r->next = (int)i; /* the rank that the error is about */
        give_up(r, code, err.text);
        return -1;
    }
    if (bind_node((enum bind_to)r->job->bind_to, (int)r->share->nlocal, r->bindings,
                  &err) < 0) {
        if (host_label(r))
            err_prefix(&err, "%s", r->share->host);
        give_up(r, EXIT_CANNOT_START, err.text);
        return -1;
    }
    if (r->job->nnodes > 1 && !r->job->interface) {
        r->gloo_interface = machine_gloo_interface(r->job->master_addr);
        if (r->gloo_interface)
            log_info(
                "this host's name resolves to a loopback address: Gloo is set to use %s",
                r->gloo_interface);
    }
    /* the children inherit the directory; usually the agent is in it already */
    if (chdir(r->job->wdir) < 0) {
        err_errno(&err, "cannot start in directory '%s'", r->job->wdir);
        give_up(r, EXIT_CANNOT_START, err.text);
        return -1;
    }
    r->prepared = true;
    return 0;
}

/* The rank runs: pass it the input received so far, which is at most INPUT_CREDIT. */
static void rank_runs(struct ranks *r, struct worker_proc *w)
{
    uint32_t local = (uint32_t)r->next;
    size_t n = evbuffer_get_length(r->early);
    r->workers[local] = w;
    AGENT_HOOKS(r->agent, rank_started, local, worker_pid(w));
    if (takes_input(r, r->share->ranks[local].rank)) {
        if (n > 0)
            worker_input(w, evbuffer_pullup(r->early, -1), n);
        if (r->early_end)
            worker_input(w, NULL, 0);
    }
    if (local + 1 == r->share->nlocal)
        evbuffer_drain(r->early, n);
}

/* --- starting ----------------------------------------------------------------------- */

static int start_one(struct ranks *r, uint32_t local)
{
    struct strv env = {0};
    make_last_env(r, local, &env);
    const struct binding *b = &r->bindings[local];
    const struct program *p = programs_of(&r->programs, r->share->ranks[local].rank);
    struct child_spec spec = {
        .path = p->path,
        .argv = p->argv.v,
        .env = env.v,
        .cpus = b->cpus,
        .cpus_size = b->cpus_size,
        .extra = agent_plugins_rank_fd(r->agent, local),
        .group = true,
    };
    int rank = (int)r->share->ranks[local].rank;
    struct worker_proc *w = worker_create(r->loop, r->reap, rank, &worker_events, r);
    enum child_step step;
    int rc = worker_start(w, &spec, takes_input(r, (uint32_t)rank), &step);
    if (rc == 0) {
        rank_runs(r, w);
    } else {
        struct ddp_err err;
        int code = program_failed(p->argv.v[0], p->path, r->job->wdir, host_label(r),
                                  step, &err);
        worker_destroy(w);
        give_up(r, code, err.text);
    }
    if (spec.extra >= 0)
        close(spec.extra);
    strv_finish(&env);
    return rc;
}

static void start_batch(struct ranks *r)
{
    if (r->stopped)
        return;
    if (!r->prepared) {
        if (!files_answer(r) || prepare(r) < 0)
            return;
    }
    r->stopped |= r->share->standby;
    if (agent_plugins_start(r->agent) || r->stopped)
        return;
    int64_t end_ms = now_ms() + BATCH_MS;
    for (int i = 0; i < BATCH && r->next < (int)r->share->nlocal && now_ms() < end_ms;
         i++, r->next++) {
        if (start_one(r, (uint32_t)r->next) < 0)
            return;
    }
    if (r->next < (int)r->share->nlocal)
        event_add(r->starter, &(struct timeval){0});
    else
        agent_send(r->agent, MSG(spawned));
}

static void on_start(evutil_socket_t fd, short what, void *arg)
{
    start_batch(arg);
}

/* --- started by a plug-in ----------------------------------------------------------- */

int ranks_next(struct ranks *r, struct next_rank *n)
{
    uint32_t local = (uint32_t)r->next, rank = r->share->ranks[local].rank;
    *n = (struct next_rank){.extra = -1};
    r->opened = worker_create(r->loop, r->reap, (int)rank, &worker_events, r);
    if (worker_open(r->opened, takes_input(r, rank), n->streams) < 0) {
        worker_destroy(r->opened);
        r->opened = NULL;
        return -1;
    }
    make_last_env(r, local, &n->env);
    n->extra = agent_plugins_rank_fd(r->agent, local);
    return 0;
}

void next_rank_finish(struct next_rank *n)
{
    for (size_t i = 0; i < ARRAY_LEN(n->streams); i++) {
        if (n->streams[i] >= 0)
            close(n->streams[i]);
    }
    if (n->extra >= 0)
        close(n->extra);
    strv_finish(&n->env);
}

bool ranks_adopt(struct ranks *r, pid_t pid)
{
    worker_adopt(r->opened, pid);
    rank_runs(r, r->opened);
    r->opened = NULL;
    r->next++;
    bool last = r->next == (int)r->share->nlocal;
    if (last)
        agent_send(r->agent, MSG(spawned));
    return last;
}

void ranks_resume(struct ranks *r)
{
    worker_destroy(r->opened);
    r->opened = NULL;
    if (r->next < (int)r->share->nlocal)
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
    worker_destroy(r->opened);
    r->opened = NULL;
    if (again && !r->between && r->next > 0)
        forget_input(r);
    r->between |= again;
    check_over(r);
}

void ranks_again(struct ranks *r)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        worker_destroy(r->workers[i]);
        r->workers[i] = NULL;
    }
    r->next = 0;
    r->stopped = r->between = false;
    event_active(r->starter, EV_TIMEOUT, 0);
}

void ranks_signal(struct ranks *r, int sig)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i])
            worker_signal(r->workers[i], sig);
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

bool ranks_has_group(const struct ranks *r, pid_t group)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] && worker_pid(r->workers[i]) == group)
            return true;
    }
    return false;
}

bool ranks_drained(const struct ranks *r)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i] && !worker_drained(r->workers[i]))
            return false;
    }
    return true;
}

void ranks_cut(struct ranks *r, bool idle_only)
{
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (r->workers[i])
            worker_cut(r->workers[i], idle_only);
    }
}

void ranks_credit(struct ranks *r, uint32_t n)
{
    bool none = r->credit == 0;
    r->credit += n;
    for (uint32_t i = 0; none && i < r->share->nlocal; i++) {
        if (r->workers[i])
            worker_resume(r->workers[i]);
    }
}

void ranks_input(struct ranks *r, const void *data, size_t n)
{
    if ((r->next < (int)r->share->nlocal || r->between) && n > 0)
        evbuffer_add(r->early, data, n);
    r->early_end |= n == 0;
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        if (!r->between && r->workers[i] && takes_input(r, r->share->ranks[i].rank))
            worker_input(r->workers[i], data, n);
    }
}

struct ranks *ranks_create(struct agent *a)
{
    struct ranks *r = xcalloc(1, sizeof *r);
    const struct msg_share *share = &a->share;
    *r = (struct ranks){.agent = a,
                        .loop = a->loop,
                        .reap = a->reap,
                        .job = &a->job,
                        .share = share,
                        .credit = a->job.credit};
    programs_init(&r->programs, &a->job);
    r->bindings = xcalloc(share->nlocal, sizeof *r->bindings);
    r->workers = xcalloc(share->nlocal, sizeof *r->workers);
    r->taken = xcalloc(share->nlocal, sizeof *r->taken);
    r->starter = evtimer_new(loop_base(r->loop), on_start, r);
    r->early = evbuffer_new();
    if (!r->starter || !r->early)
        abort();
    event_active(r->starter, EV_TIMEOUT, 0);
    return r;
}

void ranks_destroy(struct ranks *r)
{
    if (!r)
        return;
    worker_destroy(r->opened);
    for (uint32_t i = 0; i < r->share->nlocal; i++) {
        worker_destroy(r->workers[i]);
    }
    binding_finish(r->bindings, (int)r->share->nlocal);
    free(r->bindings);
    free(r->workers);
    free(r->taken);
    offload_end(r->search);
    event_free(r->starter);
    evbuffer_free(r->early);
    programs_finish(&r->programs);
    free(r->gloo_interface);
    strv_finish(&r->base);
    free(r);
}
