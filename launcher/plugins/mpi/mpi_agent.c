/* launcher/plugins/mpi/mpi_agent.c - services for MPI programs, on the nodes' side
 *
 * Two services: PMIx (Open MPI), by a process that is started when the first rank
 * connects (pmix_server.c), and PMI-1 and PMI-2 (MPICH and its derivatives), in the agent
 * (pmi_server.h), over a descriptor that every rank inherits. A rank that uses neither
 * only gets some environment variables and that descriptor.
 *
 * The agent accepts the first connection from a process of the job, starts the PMIx
 * server and passes it that connection. Connections of other processes are closed and
 * start nothing. A server that fails ends the job only if an MPI program needs it: one
 * whose libraries say so (expect_server()), or one that spoke PMIx on that first
 * connection.
 *
 * The PMIx server is like an agent below this one: its FENCE, PEER, ABORT and LOG frames
 * are forwarded to the parent unchanged, and FENCE and PEER for its service to the
 * server.
 *
 * Whether a rank that exited with 0 has left MPI: the server reports that before it
 * answers the rank, but the exit may be reaped before the report is read. So the agent
 * asks the server (MEMBER_ASKED), whose answer comes after any such report.
 */
#define LOG_SUBSYS "mpi"
#include "launcher/agent/plugin.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/installed.h"
#include "common/listener.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/admission/admission.h"
#include "launcher/link/link.h"
#include "launcher/link/rankmap.h"
#include "launcher/plugins/mpi/mpi_kind.h"
#include "launcher/plugins/mpi/pmi_server.h"
#include "launcher/plugins/mpi/session_dir.h"
#include "launcher/plugins/mpi/shm_cleanup.h"
#include "launcher/plugins/plugins.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ms: limit for the PMIx server's exit (twice its own limit); how long a report of the
 * server may still be in transit after the rank it concerns has exited */
enum { STOP_MS = 2000, ABSENCE_MS = 1000 };

struct mpi_rank {
    bool joined;       /* is in MPI: has initialized it and not left */
    bool ever;         /* has been in MPI */
    bool exited, well; /* well: with status 0 */
    int64_t exited_ns; /* when */
};

struct mpi_node {
    struct agent *agent;         /* borrowed */
    struct mpi_service *service; /* owned: of this attempt; NULL before the first */
    char *mapping;               /* owned: PMI_process_mapping; NULL: none */
    struct strv map;             /* as in msg_serve, of an attempt; empty: not known */
    uint32_t attempt;            /* of the map */
};

struct mpi_service {
    const struct mpi_node *node;   /* borrowed */
    struct agent *agent;           /* borrowed */
    const struct msg_job *job;     /* borrowed */
    const struct msg_share *share; /* borrowed */
    char *program;      /* owned: the PMIx server's; NULL: PMIx is not served */
    char *nspace, *uri; /* owned, likewise */
    char *dir;          /* owned: of the server's session files */
    /* owned: until its descriptor is passed to the server; NULL: none */
    struct listener *listener;
    int first;   /* owned: the connection that the server was started for; -1: none */
    bool wanted; /* an MPI program needs the server */
    struct event *deadline, *absence; /* owned */
    pid_t server;                     /* 0: not started, or exited */
    struct link *link;                /* owned: to the server */
    bool unmapped;                    /* the server runs, and waits for the map */
    bool served;                      /* the server has been started once */
    bool ending; /* the attempt is: a rank without MPI delays nobody */
    bool stopped;
    struct mpi_rank *ranks; /* owned, by local rank */
    uint32_t nlocal;        /* the agent's share may be another at the end */
    bool crowded;           /* more ranks than CPUs */
    bool present;           /* reported: some of them are in MPI */
    struct pmi_server *pmi; /* owned; NULL: PMI is not served */
};

/* --- reports to the parent ---------------------------------------------------------- */

static void report_abort(struct mpi_service *w, uint32_t rank, int code, int64_t at_ns,
                         const char *text)
{
    agent_send(w->agent, MSG(abort, rank, code, at_ns, msg_text(text)));
}

static void report_member(struct mpi_service *w, uint32_t local, enum member_state state)
{
    agent_send(w->agent, MSG(member, w->share->ranks[local].rank, state));
}

static void report_presence(struct mpi_service *w)
{
    uint32_t i = 0, n = w->share->nlocal;
    while (i < n && (!w->ranks[i].joined || w->ranks[i].exited))
        i++;
    if (w->present == (i < n))
        return;
    w->present = i < n;
    report_member(w, w->present ? i : 0, w->present ? MEMBER_JOINED : MEMBER_LEFT);
}

/* One rank that exited with 0 without MPI is enough: MPI ranks wait for all others. */
static void on_absence(evutil_socket_t fd, short what, void *arg)
{
    struct mpi_service *w = arg;
    uint32_t i = 0, n = w->share->nlocal;
    while (i < n && (!w->ranks[i].well || w->ranks[i].ever))
        i++;
    if (i < n)
        report_member(w, i, MEMBER_ABSENT);
}

static void on_membership(uint32_t local, bool joined, void *arg)
{
    struct mpi_service *w = arg;
    w->ranks[local].joined = joined;
    w->ranks[local].ever |= joined;
    report_presence(w);
}

static const char left_open[] = "exited with status 0 without calling MPI_Finalize";

static void handle_member(struct mpi_service *w, const struct msg_member *m)
{
    for (uint32_t i = 0; i < w->share->nlocal; i++) {
        struct mpi_rank *r = &w->ranks[i];
        if (w->share->ranks[i].rank != m->rank)
            continue;
        if (m->state != MEMBER_ASKED)
            on_membership(i, m->state == MEMBER_JOINED, w);
        else if (r->joined && r->exited)
            report_abort(w, m->rank, 1, r->exited_ns, left_open);
    }
}

/* From version 2 on, libpmix's handshake starts with eight bytes of 0xff. */
static bool speaks_pmix(int fd)
{
    static const unsigned char ones[] = {255, 255, 255, 255, 255, 255, 255, 255};
    unsigned char head[sizeof ones];
    return fd >= 0 &&
           recv(fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT) == sizeof head &&
           memcmp(head, ones, sizeof ones) == 0;
}

static void drop_first(struct mpi_service *w)
{
    if (w->first >= 0)
        close(w->first);
    w->first = -1;
}

static void end_job(struct mpi_service *w, const char *text)
{
    agent_cannot(w->agent, UINT32_MAX, EXIT_CANNOT_START, text);
}

/* No rank is left: close the PMIx server's link; after STOP_MS it is killed. */
static void stop_server(struct mpi_service *w)
{
    if (w->stopped)
        return;
    w->stopped = true;
    listener_destroy(w->listener);
    w->listener = NULL;
    drop_first(w);
    if (w->link)
        link_close(w->link);
    w->link = NULL;
    if (w->server > 0)
        loop_arm(w->deadline, STOP_MS);
}

static void fail(struct mpi_service *w, const char *text)
{
    bool missed = w->wanted || speaks_pmix(w->first);
    drop_first(w);
    if (missed) {
        end_job(w, text);
    } else {
        log_warn("%s", text);
        stop_server(w);
    }
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct mpi_service *w = arg;
    struct ddp_err err;
    union msg_any m;
    if (msg_unpack(f, &m, &err) < 0) {
        end_job(w, err.text);
        return;
    }
    switch ((int)f->type) {
    case MSG_LOG:
        agent_send(w->agent, f->type, &m);
        break;
    case MSG_FENCE:
    case MSG_PEER:
    case MSG_ABORT:
        w->wanted = true;
        drop_first(w);
        agent_send(w->agent, f->type, &m);
        break;
    case MSG_MEMBER:
        w->wanted = true;
        drop_first(w);
        handle_member(w, &m.member);
        break;
    case MSG_SPAWN_FAILED:
        fail(w, m.spawn_failed.text);
        break;
    default:
        log_debug("unexpected frame '%s'", msg_name(f->type));
    }
    msg_finish(f->type, &m);
}

/* --- the server --------------------------------------------------------------------- */

static void on_server_closed(struct link *l, const char *why, void *arg)
{
    struct mpi_service *w = arg;
    link_close(w->link); /* its exit is handled when it is reaped */
    w->link = NULL;
}

static const struct link_events link_events = {on_frame, on_server_closed, NULL};

static void on_server_exit(pid_t pid, int status, int64_t at_ns,
                           const struct rusage *used, void *arg)
{
    struct mpi_service *w = arg;
    w->server = 0;
    event_del(w->deadline);
    if (!WIFEXITED(status))
        session_dir_remove(w->dir);
    if (w->stopped)
        return;
    char text[200];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        snprintf(text, sizeof text,
                 "a rank on %.60s asks for PMIx, but ddprun-pmix does not run there: is "
                 "libpmix.so.2 (package libpmix2) installed on it",
                 w->share->host);
    else
        snprintf(text, sizeof text, "the PMIx server on %.60s has ended with %s %d",
                 w->share->host, WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fail(w, text);
}

static void send_orders(struct mpi_service *w)
{
    struct msg_serve m = {.nspace = xstrdup(w->nspace),
                          .host = xstrdup(w->share->host),
                          .uri = xstrdup(w->uri),
                          .dir = xstrdup(w->dir),
                          .node = w->share->node_rank,
                          .nranks = w->job->nranks};
    strv_push_all(&m.apps, w->job->apps.v);
    strv_push_all(&m.map, w->node->map.v);
    link_send_msg(w->link, 0, MSG_SERVE, &m);
    msg_serve_finish(&m);
}

static int start_server(struct mpi_service *w, struct ddp_err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return err_errno(err, "cannot make a socketpair");
    char *argv[] = {w->program, NULL};
    struct child_spec spec = {.path = w->program,
                              .argv = argv,
                              .env = environ,
                              .in = pair[1],
                              .out = listener_fd(w->listener),
                              .err = STDERR_FILENO,
                              .extra = w->first,
                              .group = true};
    enum child_step step;
    w->server = child_spawn(&spec, &step);
    close(pair[1]);
    if (w->server < 0) {
        w->server = 0;
        err_spawn(err, "cannot start '%s'", w->program);
        close(pair[0]);
        return -1;
    }
    w->served = true;
    log_debug("PMIx server started as process %d", (int)w->server);
    reap_watch(w->agent->reap, w->server, on_server_exit, w);
    w->link = link_create(w->agent->loop, pair[0], FRAME_UP, NULL, &link_events, w);
    w->unmapped = w->node->map.n == 0;
    if (w->unmapped)
        agent_send(w->agent, MSG(map_request, w->job->attempt));
    else
        send_orders(w);
    listener_destroy(w->listener);
    w->listener = NULL;
    return 0;
}

static void start_if_needed(struct mpi_service *w)
{
    struct ddp_err err;
    if (w->stopped || !w->listener)
        return;
    if (start_server(w, &err) < 0) {
        listener_destroy(w->listener);
        w->listener = NULL;
        fail(w, err.text);
    }
}

/* An MPI program needs it: the ranks will connect to it. */
static void expect_server(struct mpi_service *w)
{
    w->wanted = true;
    start_if_needed(w);
}

static void on_connect(int fd, const struct sockaddr *from, void *arg)
{
    struct mpi_service *w = arg;
    struct ddp_err why;
    if (admission_accepted(agent_admission(w->agent), fd, from, NULL, &why) == 0) {
        sock_set_nonblock(fd, false); /* as libpmix expects */
        w->first = fd;
        start_if_needed(w);
    } else {
        listener_refused(w->listener, from, why.text);
        close(fd);
    }
}

static void on_stop_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct mpi_service *w = arg;
    if (w->server > 0)
        kill(w->server, SIGKILL);
}

/* --- the ranks ---------------------------------------------------------------------- */

static void mpi_rank_exited(void *state, uint32_t local, const struct msg_exit *how)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    struct mpi_rank *m = &w->ranks[local];
    bool open = w->pmi && pmi_server_exited(w->pmi, local);
    m->exited = true;
    m->exited_ns = how->at_ns;
    m->well = how->status == 0;
    report_presence(w);
    if (!m->well)
        return;
    if (!m->ever && !w->ending && !evtimer_pending(w->absence, NULL))
        loop_arm(w->absence, ABSENCE_MS);
    if (open) {
        report_abort(w, how->rank, 1, how->at_ns, left_open);
    } else if (m->joined && w->link) {
        link_send_msg(w->link, 0, MSG(member, how->rank, MEMBER_ASKED));
    }
}

static int mpi_rank_fd(void *state, uint32_t local)
{
    const struct mpi_service *w = ((struct mpi_node *)state)->service;
    return w->pmi ? pmi_server_open(w->pmi, local) : -1;
}

/* More ranks than CPUs: a rank that waits by spinning would then delay the others. */
static bool crowded(const struct mpi_service *w)
{
    cpu_set_t own;
    return sched_getaffinity(0, sizeof own, &own) == 0 &&
           (uint32_t)CPU_COUNT(&own) < w->share->nlocal;
}

static void mpi_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    const struct mpi_service *w = ((struct mpi_node *)state)->service;
    facts->pmix_nspace = w->nspace;
    facts->pmix_uri = w->uri;
    facts->crowded = w->nspace && w->crowded;
    if (w->pmi)
        facts->pmi_fd = CHILD_EXTRA_FD;
}

struct seen {
    enum mpi_kind kind;
    char library[64];
};

static void *mpi_examine(const char *path, const struct strv *env)
{
    struct seen *s = xcalloc(1, sizeof *s);
    s->kind = mpi_kind_of(path, strv_env_get(env, "LD_LIBRARY_PATH"), s->library,
                          sizeof s->library);
    return s;
}

/* Fail for an MPI program whose ranks would not find each other; start PMIx if needed. */
static int mpi_program(void *state, const char *path, const void *seen,
                       struct ddp_err *err)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    const struct seen *file = seen;
    const struct msg_job *job = w->job;
    if (job->mpi == MPI_NONE || file->kind == MPI_UNSEEN)
        return 0;
    const char *name = job->apps.n > 0 ? path : job->argv.v[0];
    unsigned serves = (w->nspace ? MPI_PMIX : 0U) | (w->pmi ? MPI_PMI : 0U);
    if (mpi_kind_check(file->kind, name, file->library, serves, job->nranks, err) < 0)
        return -1;
    if (file->kind == MPI_WANTS_PMIX)
        expect_server(w);
    return 0;
}

/* --- messages ----------------------------------------------------------------------- */

static int handle_frame(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    uint32_t service = f->type == MSG_PEER ? ((const struct msg_peer *)f->m)->service
                                           : ((const struct msg_fence *)f->m)->service;
    if (!w)
        return 0;
    if (service == SERVICE_PMI)
        return w->pmi ? pmi_server_on_frame(w->pmi, f, err) : 0;
    if (!w->link)
        expect_server(w); /* another node asks before a rank here has */
    if (w->link)
        link_send(w->link, f->type, f->node, f->body, f->size, NULL, 0);
    return 0;
}

static int handle_mapping(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_node *s = state;
    struct msg_pmi_mapping *m = f->m;
    free(s->mapping);
    s->mapping = msg_take(&m->value);
    return 0;
}

static int handle_map(void *state, const struct frame *f, struct ddp_err *err)
{
    struct mpi_node *s = state;
    struct mpi_service *w = s->service;
    const struct msg_map *m = f->m;
    strv_finish(&s->map);
    s->attempt = m->attempt;
    if (rankmap_unpack(m->data, m->ndata, m->size, &s->map, err) < 0)
        return -1;
    if (w && w->link && w->unmapped)
        send_orders(w);
    if (w)
        w->unmapped = false;
    return 0;
}

/* --- attempts ----------------------------------------------------------------------- */

static int open_listener(struct mpi_service *w, struct ddp_err *err)
{
    int port;
    int fd = sock_listen("127.0.0.1", 0, &port, err);
    if (fd < 0)
        return -1;
    w->listener = listener_create(w->agent->loop, fd, "PMIx", on_connect, w);
    w->dir = session_dir_name();
    w->nspace = xasprintf("ddprun-%.100s", w->job->id);
    w->uri = xasprintf("%s-server.%u;tcp4://127.0.0.1:%d", w->nspace, w->share->node_rank,
                       port);
    return 0;
}

static void on_pmi_abort(uint32_t rank, int code, const char *text, void *arg)
{
    report_abort(arg, rank, code, now_ns(), text);
}

/* Serves those of `job.mpi` that this build and this machine support. */
static struct mpi_service *service_create(const struct mpi_node *s)
{
    struct agent *a = s->agent;
    const struct msg_job *job = &a->job;
    const struct msg_share *share = &a->share;
    struct loop *loop = a->loop;
    struct mpi_service *w = xcalloc(1, sizeof *w);
    struct ddp_err err;
    *w = (struct mpi_service){
        .node = s, .agent = a, .job = job, .share = share, .first = -1};
    w->nlocal = share->nlocal;
    w->crowded = crowded(w);
    w->ranks = xcalloc(w->nlocal, sizeof *w->ranks);
    w->deadline = loop_timer(loop, on_stop_deadline, w);
    w->absence = loop_timer(loop, on_absence, w);
    if (job->mpi & MPI_PMIX)
        w->program = installed_file(INSTALLED_PROGRAM, "ddprun-pmix", X_OK);
    if (w->program && open_listener(w, &err) < 0)
        log_warn("PMIx is not served: %s", err.text);
    static const struct pmi_events pmi_events = {on_membership, on_pmi_abort};
    /* PMI_FD means nothing without PMI_RANK */
    if (job->mpi & MPI_PMI && job->rank_names & NAMES_PMI)
        w->pmi = pmi_server_create(a, s->mapping, &pmi_events, w);
    return w;
}

static void service_destroy(struct mpi_service *w)
{
    if (!w)
        return;
    listener_destroy(w->listener);
    w->listener = NULL;
    drop_first(w);
    if (w->link)
        link_close(w->link);
    if (w->server > 0) /* it exits, as its link is closed; or main() kills all children */
        reap_forget(w->agent->reap, w->server);
    if (w->served)
        shm_cleanup_openmpi(w->nspace, w->nlocal);
    loop_free(w->deadline);
    loop_free(w->absence);
    pmi_server_destroy(w->pmi);
    free(w->program);
    free(w->dir);
    free(w->nspace);
    free(w->uri);
    free(w->ranks);
    free(w);
}

/* With one node the map needs no message. */
static void map_one_node(struct mpi_node *s, const struct msg_share *share)
{
    int *ranks = xcalloc(share->nlocal, sizeof *ranks);
    for (uint32_t i = 0; i < share->nlocal; i++)
        ranks[i] = (int)share->ranks[i].rank;
    rankmap_push(&s->map, share->host, ranks, (int)share->nlocal);
    free(ranks);
}

static int mpi_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct mpi_node *s = state;
    service_destroy(s->service);
    if (s->attempt != job->attempt)
        strv_finish(&s->map); /* nodes may have been replaced */
    if (job->nnodes == 1 && s->map.n == 0)
        map_one_node(s, &s->agent->share);
    s->attempt = job->attempt;
    s->service = service_create(s);
    return 0;
}

static void mpi_ranks_over(void *state)
{
    stop_server(((struct mpi_node *)state)->service);
}

/* A later report that a rank was never in MPI would use the share of the next attempt, in
 * which the launcher expects no report of this one. */
static void mpi_stop(void *state, bool again)
{
    struct mpi_service *w = ((struct mpi_node *)state)->service;
    if (!w)
        return;
    w->ending = true;
    event_del(w->absence);
}

/* The PMIx server cleans up after the ranks, then exits by itself. */
static bool mpi_spares(const void *state, pid_t pid)
{
    const struct mpi_service *w = ((const struct mpi_node *)state)->service;
    return w && w->server > 0 && (pid == 0 || w->server == pid);
}

static bool mpi_busy(const void *state)
{
    return mpi_spares(state, 0);
}

static void mpi_fini(void *state)
{
    struct mpi_node *s = state;
    service_destroy(s->service);
    strv_finish(&s->map);
    free(s->mapping);
}

static const struct agent_message messages[] = {
    {MSG_FENCE, handle_frame},
    {MSG_PEER, handle_frame},
    {MSG_PMI_MAPPING, handle_mapping},
    {MSG_MAP, handle_map},
    {0},
};

const struct agent_plugin mpi_agent = {
    .name = "mpi",
    .state_size = sizeof(struct mpi_node),
    .fini = mpi_fini,
    .prepare = mpi_prepare,
    .examine = mpi_examine,
    .program = mpi_program,
    .rank_facts = mpi_rank_facts,
    .rank_fd = mpi_rank_fd,
    .rank_exited = mpi_rank_exited,
    .ranks_over = mpi_ranks_over,
    .stop = mpi_stop,
    .busy = mpi_busy,
    .spares = mpi_spares,
    .messages = messages,
};
