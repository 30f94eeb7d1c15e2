/* launcher/plugins/spawn/spawn_job.c - jobs that ranks start: MPI_Comm_spawn
 *
 * What a rank spawns is a job of its own, run by another ddprun: a child of this one,
 * with its options, on its hosts (spawned.h). It has a link to its parent. It reports
 * that its ranks have called MPI_Init, which answers the rank. It ends quietly when the
 * link is closed.
 * Both print to the same terminal; the ranks of the nth spawned job are [N:RANK].
 *
 * This job lasts until the spawned ones have ended. One that fails ends it.
 */
#define LOG_SUBSYS "spawn"
#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"
#include "launcher/job/events.h"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"
#include "launcher/plugins/spawn/spawn_place.h"
#include "launcher/plugins/spawn/spawn_start.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utlist.h>

/* ms: how much longer than --grace a spawned ddprun may take to end; the most processes
 */
enum { END_MS = 10000, SPAWN_MAX = 10000000 };

/* A job that a rank of this one has spawned. */
struct spawned_job {
    struct spawn_state *owner;     /* borrowed */
    pid_t pid;                     /* of its ddprun */
    struct link *link;             /* owned; NULL: closed */
    unsigned node;                 /* of the rank */
    struct msg_spawn_result asked; /* `job` NULL; what the answer repeats */
    char *number;                  /* owned: "2"; "1.2": spawned by job 1 */
    bool answered;                 /* the rank has been: its ranks are in MPI */
    int64_t kill_ms;               /* when to kill it; 0: it need not end */
    char *name;                    /* owned: the first program */
    char *id;                      /* owned: of the job; NULL: its ranks do not run */
    int64_t started_ns;            /* when all ran */
    json_t *fields;                /* owned: of its first event */
    unsigned running;              /* it and those it has spawned: without last event */
    int *ranks_on;                 /* owned: by node of this job */
    struct spawned_job *prev, *next;
};

struct spawn_state {
    struct job *j;            /* borrowed */
    struct spawned_job *jobs; /* owned */
    int count;                /* of all that were started */
    struct link *parent; /* owned: to the ddprun that has started this one, or NULL */
};

/* --- events ------------------------------------------------------------------------- */

static json_t *describe(const struct spawned_job *s, const struct msg_spawn *m)
{
    const struct job *j = s->owner->j;
    json_t *command = json_array(), *nodes = json_array();
    int n = 0;
    for (uint32_t i = 0; i < m->nprograms; i++) {
        const struct strv *argv = &m->programs[i].argv;
        if (i > 0)
            json_array_append_new(command, json_string(":"));
        for (size_t w = 0; w < argv->n; w++)
            json_array_append_new(command, event_text(argv->v[w]));
    }
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        const char *host = j->alloc->nodes[i].name;
        int on = s->ranks_on[i];
        n += on;
        if (on > 0)
            json_array_append_new(
                nodes, json_pack("{s:o, s:i}", "host", event_text(host), "ranks", on));
    }
    return json_pack("{s:s, s:i, s:o, s:i, s:o}", "number", s->number, "rank",
                     (int)m->rank, "command", command, "ranks", n, "nodes", nodes);
}

/* Of this spawned job, or of one that it has spawned; also for the ddprun that has
 * started this one. */
static void emit(struct spawned_job *s, bool ended, json_t *fields)
{
    struct job *j = s->owner->j;
    bool ran = !json_is_null(json_object_get(fields, "run_s"));
    int change = !ended ? 1 : ran ? -1 : 0;
    s->running += (unsigned)change;
    j->spawned.running += (unsigned)change;
    j->spawned.ended += ended;
    OWNED char *text = s->owner->parent ? json_dumps(fields, JSON_COMPACT) : NULL;
    if (text)
        link_send_msg(s->owner->parent, 0, MSG(spawn_event, ended, text));
    if (ended)
        event_emit(j, "spawned_end", "O", fields);
    else
        event_emit(j, "spawned_start", "O", fields);
}

static void emit_start(struct spawned_job *s)
{
    s->started_ns = now_ns();
    json_object_set_new(s->fields, "id", json_string(s->id));
    emit(s, false, s->fields);
}

/* `code`: NULL if it is not known; taken over. */
static void emit_end(struct spawned_job *s, json_t *code)
{
    struct job_spawned *count = &s->owner->j->spawned;
    json_t *run_s = s->id ? json_real((double)(now_ns() - s->started_ns) / 1e9) : NULL;
    json_auto_t *fields = json_pack("{s:o?, s:o?}", "code", code, "run_s", run_s);
    static const char *const same[] = {"number", "rank", "ranks"};
    for (size_t i = 0; i < ARRAY_LEN(same); i++)
        json_object_set(fields, same[i], json_object_get(s->fields, same[i]));
    emit(s, true, fields);
    count->running -= s->running; /* it was stopped: their ends were not reported */
    count->ended += s->running;
}

static void handle_event(struct spawned_job *s, const struct frame *f)
{
    struct msg_spawn_event m;
    struct ddp_err err;
    if (msg_spawn_event_unpack(f, &m, &err) < 0)
        return;
    json_auto_t *fields = json_loads(m.fields, 0, NULL);
    if (json_is_object(fields))
        emit(s, m.ended, fields);
    msg_spawn_event_finish(&m);
}

/* --- the end of a spawned job ------------------------------------------------------- */

static void answer(struct spawned_job *s, const char *job)
{
    struct msg_spawn_result m = s->asked;
    m.job = msg_text(job);
    job_send(s->owner->j, s->node, MSG_SPAWN_RESULT, &m);
}

static void spawned_free(struct spawned_job *s)
{
    DL_DELETE(s->owner->jobs, s);
    link_close(s->link);
    json_decref(s->fields);
    free(s->number);
    free(s->name);
    free(s->id);
    free(s->ranks_on);
    free(s);
}

/* It stops its ranks without a message of its own. */
static void end_spawned(struct spawned_job *s)
{
    if (s->kill_ms)
        return;
    s->kill_ms = now_ms() + s->owner->j->opts->grace_ms + END_MS;
    link_close(s->link);
    s->link = NULL;
}

static char *how_failed(const struct spawned_job *s, int status)
{
    if (WIFSIGNALED(status))
        return xasprintf("spawned '%.200s', whose ddprun died of %s", s->name,
                         signal_name(WTERMSIG(status)));
    return xasprintf("spawned '%.200s', which failed with exit code %d", s->name,
                     WEXITSTATUS(status));
}

static void on_exit_of(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                       void *arg)
{
    struct spawned_job *s = arg;
    struct job *j = s->owner->j;
    int code = cause_exit_code(status);
    log_debug("spawned job of process %d has ended with status %d", (int)pid, code);
    if (s->link)
        link_receive(s->link);
    emit_end(s, json_integer(code));
    bool never_ran = code == 0 || (code >= EXIT_CANNOT_START && code < 128);
    if (code == 0 && !s->answered && !s->kill_ms)
        log_error("rank %u spawned '%.200s', which has ended without calling MPI_Init",
                  s->asked.rank, s->name);
    if (never_ran && !s->answered && !s->kill_ms)
        answer(s, NULL);
    else if (status != 0 && !s->kill_ms)
        job_fail(j, (struct cause){.kind = CAUSE_ABORT,
                                   .rank = (int)s->asked.rank,
                                   .code = code,
                                   .at_ns = at_ns,
                                   .text = how_failed(s, status)});
    if (s->answered)
        job_send(j, NODE_ALL, MSG(spawn_ended, s->id));
    spawned_free(s);
    job_check(j);
}

/* --- its link ----------------------------------------------------------------------- */

/* To all nodes, and to the related jobs that have a link with this one, but `from`. */
static void pass_on(struct spawn_state *g, const struct msg_related *m,
                    const struct link *from)
{
    const struct spawned_job *s;
    job_send(g->j, NODE_ALL, MSG_RELATED, m);
    if (g->parent && g->parent != from)
        link_send_msg(g->parent, 0, MSG_RELATED, m);
    DL_FOREACH (g->jobs, s) {
        if (s->link && s->link != from)
            link_send_msg(s->link, 0, MSG_RELATED, m);
    }
}

static void pass_frame(struct spawn_state *g, const struct link *from,
                       const struct frame *f)
{
    struct msg_related m;
    struct ddp_err err;
    if (msg_related_unpack(f, &m, &err) < 0)
        return;
    pass_on(g, &m, from);
    msg_related_finish(&m);
}

static int handle_related(void *state, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    pass_on(state, f->m, NULL);
    return 0;
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct spawned_job *s = arg;
    struct msg_spawn_started m;
    struct ddp_err err;
    if (f->type == MSG_RELATED)
        pass_frame(s->owner, l, f);
    if (f->type == MSG_SPAWN_EVENT)
        handle_event(s, f);
    if (f->type != MSG_SPAWN_STARTED || msg_spawn_started_unpack(f, &m, &err) < 0)
        return;
    if (!s->id) {
        s->id = msg_take(&m.id);
        emit_start(s);
    }
    if (m.ready) {
        s->answered = true;
        answer(s, s->id);
    }
    msg_spawn_started_finish(&m);
}

static void on_closed(struct link *l, const char *why, void *arg)
{
    struct spawned_job *s = arg; /* its exit is handled when it is reaped */
    link_close(s->link);
    s->link = NULL;
}

static const struct link_events link_events = {on_frame, on_closed};

/* --- its start ---------------------------------------------------------------------- */

/* Its end is reported to on_exit_of(). */
static int start_ddprun(struct spawned_job *s, const struct msg_spawn *m,
                        const char *hosts, struct ddp_err *err)
{
    const struct job *j = s->owner->j;
    int fd;
    s->pid = spawn_start(j, m, s->number, hosts, &fd, err);
    if (s->pid < 0)
        return -1;
    s->link = link_create(j->loop, fd, FRAME_UP, NULL, &link_events, s);
    reap_watch(j->reap, s->pid, on_exit_of, s);
    return 0;
}

/* Its ranks are placed beside those of this job and of other spawned ones. */
static char *place(const struct spawned_job *s, unsigned n, const char *only,
                   struct ddp_err *err)
{
    const struct job *j = s->owner->j;
    const struct spawned_job *other;
    OWNED int *busy = xcalloc(j->alloc->nnodes, sizeof *busy);
    DL_FOREACH (s->owner->jobs, other) {
        for (size_t i = 0; i < j->alloc->nnodes; i++)
            busy[i] += other->ranks_on[i];
    }
    return spawn_place(j, n, only, busy, s->ranks_on, err);
}

static void start_spawned(struct spawn_state *g, unsigned node, const struct msg_spawn *m)
{
    struct job *j = g->j;
    struct ddp_err err;
    struct spawned_job *s = xcalloc(1, sizeof *s);
    const char *own = j->opts->spawn_number;
    g->count++;
    *s = (struct spawned_job){.owner = g,
                              .node = node,
                              .number = own ? xasprintf("%s.%d", own, g->count)
                                            : xasprintf("%d", g->count),
                              .asked = {m->service, m->rank, m->id},
                              .name = xstrdup(m->programs[0].argv.v[0])};
    s->ranks_on = xcalloc(j->alloc->nnodes, sizeof *s->ranks_on);
    DL_APPEND(g->jobs, s);
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->nprograms; i++)
        n += m->programs[i].n;
    OWNED char *hosts = NULL;
    if (n > SPAWN_MAX)
        err_set(&err, "%llu processes are too many", (unsigned long long)n);
    else
        hosts = place(s, (unsigned)n, m->programs[0].hosts, &err);
    if (hosts && start_ddprun(s, m, hosts, &err) == 0) {
        log_info("rank %u spawns %u of '%s' on %s", m->rank, (unsigned)n, s->name,
                 *hosts ? hosts : "this host");
        s->fields = describe(s, m);
        job_share_terminal(j);
        return;
    }
    log_error("rank %u cannot spawn '%s': %s", m->rank, s->name, err.text);
    answer(s, NULL);
    spawned_free(s);
}

static int handle_spawn(void *state, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    struct spawn_state *g = state;
    const struct msg_spawn *m = f->m;
    if (!job_rank_is_of(g->j, m->rank, node))
        return err_set(err, "another node's rank spawns");
    if (g->j->state == JOB_RUNNING)
        start_spawned(g, node, m);
    else
        job_send(g->j, node, MSG(spawn_result, m->service, m->rank, m->id));
    return 0;
}

/* --- a job that is a spawned one ---------------------------------------------------- */

static void on_parent_frame(struct link *l, const struct frame *f, void *arg)
{
    struct msg_signal m;
    struct ddp_err err;
    if (f->type == MSG_RELATED)
        pass_frame(arg, l, f);
    else if (f->type == MSG_SIGNAL && msg_signal_unpack(f, &m, &err) == 0)
        kill(getpid(), (int)m.number);
}

/* The other job has ended, or is being stopped. Its ddprun reports why. */
static void on_parent_closed(struct link *l, const char *why, void *arg)
{
    struct spawn_state *g = arg;
    link_close(g->parent);
    g->parent = NULL;
    job_fail(g->j, (struct cause){.kind = CAUSE_SIGNAL,
                                  .rank = -1,
                                  .status = SIGTERM,
                                  .code = 128 + SIGTERM,
                                  .at_ns = now_ns()});
}

static const struct link_events parent_events = {on_parent_frame, on_parent_closed};

static void tell_parent(struct spawn_state *g, bool ready)
{
    if (g->parent)
        link_send_msg(g->parent, 0, MSG(spawn_started, g->j->job.id, ready));
}

/* --- life --------------------------------------------------------------------------- */

static int on_init(void *state, struct ddp_err *err)
{
    struct spawn_state *g = state;
    const struct opts *o = g->j->opts;
    g->j->job.spawned = o->spawn_number != NULL;
    for (size_t i = 0; i < o->spawn_keys.n; i++)
        strv_push(&g->j->job.pmi_keys, o->spawn_keys.v[i]);
    return o->mpi == MPI_NONE && !o->spawn_number ? 1 : 0;
}

static int on_open(void *state, struct ddp_err *err)
{
    struct spawn_state *g = state;
    if (g->j->opts->spawn_number)
        g->parent =
            link_create(g->j->loop, CHILD_EXTRA_FD, FRAME_DOWN, NULL, &parent_events, g);
    return 0;
}

static void end_all(struct spawn_state *g)
{
    struct spawned_job *s;
    DL_FOREACH (g->jobs, s)
        end_spawned(s);
}

static void on_shutdown(void *state)
{
    struct spawn_state *g = state;
    if (g->j->cause.kind != CAUSE_NONE)
        end_all(g);
}

/* ddprun may be told to end when its own ranks have exited. One that SIGKILL does not
 * end, as it hangs in the kernel, is not waited for. */
static void on_tick(void *state)
{
    struct spawn_state *g = state;
    struct spawned_job *s, *next;
    if (g->j->cause.kind != CAUSE_NONE || g->j->ending.hurried)
        end_all(g);
    DL_FOREACH_SAFE (g->jobs, s, next) {
        int64_t late_ms = s->kill_ms ? now_ms() - s->kill_ms : 0;
        if (late_ms > 0 || (s->kill_ms && g->j->ending.urgent))
            kill(s->pid, SIGKILL);
        if (late_ms > END_MS) {
            reap_forget(g->j->reap, s->pid);
            emit_end(s, NULL);
            spawned_free(s);
            job_check(g->j);
        }
    }
}

static void on_ranks_started(void *state)
{
    struct spawn_state *g = state;
    tell_parent(g, !g->j->opts->spawn_waits);
}

static void on_ranks_in_mpi(void *state)
{
    struct spawn_state *g = state;
    if (g->j->opts->spawn_waits)
        tell_parent(g, true);
}

/* Before it stops it stops its ranks. Signals that would end one that has just begun come
 * by its link. */
static void on_pass_signal(void *state, int sig)
{
    const struct spawned_job *s;
    DL_FOREACH (((struct spawn_state *)state)->jobs, s) {
        if (sig == SIGSTOP || sig == SIGCONT)
            kill(s->pid, sig == SIGSTOP ? SIGTSTP : SIGCONT);
        else if (s->link)
            link_send_msg(s->link, 0, MSG(signal, (uint32_t)sig));
    }
}

/* SIGQUIT asks for a report: they make their own. */
static bool on_signal(void *state, int sig)
{
    if (sig == SIGQUIT)
        on_pass_signal(state, sig);
    return false;
}

/* Its own ddprun reports what its ranks wait for. */
static void on_waits(void *state, json_t *list)
{
    const struct spawned_job *s;
    DL_FOREACH (((struct spawn_state *)state)->jobs, s) {
        OWNED char *text = xasprintf("rank %u waits in MPI_Comm_spawn for '%.200s', "
                                     "spawned job %s",
                                     s->asked.rank, s->name, s->number);
        if (!s->answered)
            json_array_append_new(
                list, json_pack("{s:o, s:[]}", "text", event_text(text), "ranks"));
    }
}

static bool none_left(void *state)
{
    return !((struct spawn_state *)state)->jobs;
}

static void on_fini(void *state)
{
    struct spawn_state *g = state;
    struct spawned_job *s, *next;
    DL_FOREACH_SAFE (g->jobs, s, next) {
        reap_forget(g->j->reap, s->pid);
        link_destroy(s->link); /* the loop no longer runs */
        s->link = NULL;
        spawned_free(s);
    }
    link_destroy(g->parent);
}

static const struct job_message messages[] = {
    {MSG_SPAWN, handle_spawn},
    {MSG_RELATED, handle_related},
    {0},
};

const struct job_plugin spawn_job = {
    .name = "spawn",
    .state_size = sizeof(struct spawn_state),
    .init = on_init,
    .open = on_open,
    .fini = on_fini,
    .ranks_started = on_ranks_started,
    .ranks_in_mpi = on_ranks_in_mpi,
    .waits = on_waits,
    .signal = on_signal,
    .pass_signal = on_pass_signal,
    .shutdown = on_shutdown,
    .may_leave = none_left,
    .may_restart = none_left,
    .tick = on_tick,
    .messages = messages,
};
