/* launcher/plugins/mpi/pmix_proc.c - see pmix_proc.h */
#define LOG_SUBSYS "mpi"
#include "launcher/plugins/mpi/pmix_proc.h"

#include "common/err.h"
#include "common/installed.h"
#include "common/listener.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/admission/admission.h"
#include "launcher/agent/plugin.h"
#include "launcher/link/link.h"
#include "launcher/plugins/mpi/session_dir.h"
#include "launcher/plugins/mpi/shm_cleanup.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ms: limit for the process's exit, twice its own limit */
enum { STOP_MS = 2000 };

struct pmix_proc {
    struct agent *agent;    /* borrowed */
    const struct strv *map; /* borrowed */
    void (*member)(const struct msg_member *m, void *arg);
    void *arg;
    uint32_t nlocal;              /* the agent's share may be another at the end */
    char *program, *nspace, *uri; /* owned */
    char *dir;                    /* owned: of its session files */
    struct listener *listener;    /* owned; NULL: the process has it, or is stopped */
    int first;   /* owned: the connection that the process was started for; -1: none */
    bool needed; /* by an MPI program */
    pid_t pid;
    struct event *deadline; /* owned */
    struct link *link;      /* owned */
    bool started;           /* it has been, once */
    bool unmapped;          /* it runs, and waits for the map */
    bool stopped;
};

/* --- its end ------------------------------------------------------------------------ */

static void drop_first(struct pmix_proc *p)
{
    close_fd(&p->first);
}

static void drop_listener(struct pmix_proc *p)
{
    listener_destroy(p->listener);
    p->listener = NULL;
}

void pmix_proc_stop(struct pmix_proc *p)
{
    if (!p || p->stopped)
        return;
    p->stopped = true;
    drop_listener(p);
    drop_first(p);
    if (p->link)
        link_close(p->link);
    p->link = NULL;
    if (p->pid > 0)
        loop_arm(p->deadline, STOP_MS);
}

static void on_stop_deadline(evutil_socket_t fd, short what, void *arg)
{
    const struct pmix_proc *p = arg;
    if (p->pid > 0)
        kill(p->pid, SIGKILL);
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

static void end_job(struct pmix_proc *p, const char *text)
{
    agent_cannot(p->agent, UINT32_MAX, EXIT_CANNOT_START, text);
}

static void fail(struct pmix_proc *p, const char *text)
{
    bool missed = p->needed || speaks_pmix(p->first);
    drop_first(p);
    if (missed) {
        end_job(p, text);
    } else {
        log_warn("%s", text);
        pmix_proc_stop(p);
    }
}

static void on_exit_status(pid_t pid, int status, int64_t at_ns,
                           const struct rusage *used, void *arg)
{
    struct pmix_proc *p = arg;
    const char *host = p->agent->share.host;
    char text[200];
    p->pid = 0;
    event_del(p->deadline);
    if (!WIFEXITED(status))
        session_dir_remove(p->dir);
    if (p->stopped)
        return;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        snprintf(text, sizeof text,
                 "a rank on %.60s asks for PMIx, but ddprun-pmix does not run there: is "
                 "libpmix.so.2 (package libpmix2) installed on it",
                 host);
    else if (WIFEXITED(status) && WEXITSTATUS(status) == PMIX_OTHER_VERSION)
        snprintf(text, sizeof text,
                 "ddprun-pmix on %.60s is of another version than the ddprun that runs: "
                 "start the job again if ddprun was upgraded meanwhile",
                 host);
    else
        snprintf(text, sizeof text, "the PMIx server on %.60s has ended with %s %d", host,
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fail(p, text);
}

/* --- its link ----------------------------------------------------------------------- */

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct pmix_proc *p = arg;
    struct ddp_err err;
    union msg_any m;
    if (msg_unpack(f, &m, &err) < 0) {
        end_job(p, err.text);
        return;
    }
    switch ((int)f->type) {
    case MSG_LOG:
        agent_send(p->agent, f->type, &m);
        break;
    case MSG_FENCE:
    case MSG_PEER:
    case MSG_ABORT:
    case MSG_MEMBER:
    case MSG_SPAWN:
    case MSG_RELATED:
        p->needed = true;
        drop_first(p);
        if (f->type == MSG_MEMBER)
            p->member(&m.member, p->arg);
        else
            agent_send(p->agent, f->type, &m);
        break;
    case MSG_SPAWN_FAILED:
        fail(p, m.spawn_failed.text);
        break;
    default:
        log_debug("unexpected frame '%s'", msg_name(f->type));
    }
    msg_finish(f->type, &m);
}

static void on_closed(struct link *l, const char *why, void *arg)
{
    struct pmix_proc *p = arg;
    link_close(p->link); /* its exit is handled when it is reaped */
    p->link = NULL;
}

static const struct link_events link_events = {on_frame, on_closed};

static void send_orders(struct pmix_proc *p)
{
    const struct msg_job *job = &p->agent->job;
    const struct msg_share *share = &p->agent->share;
    SCOPED(msg_serve_finish)
    struct msg_serve m = {.nspace = xstrdup(p->nspace),
                          .host = xstrdup(share->host),
                          .uri = xstrdup(p->uri),
                          .dir = xstrdup(p->dir),
                          .node = share->node_rank,
                          .nranks = job->nranks,
                          .nslots = job->nslots};
    strv_push_all(&m.apps, job->apps.v);
    strv_push_all(&m.map, p->map->v);
    link_send_msg(p->link, 0, MSG_SERVE, &m);
}

void pmix_proc_send_map(struct pmix_proc *p)
{
    if (p->link && p->unmapped)
        send_orders(p);
    p->unmapped = false;
}

void pmix_proc_forward(struct pmix_proc *p, const struct frame *f)
{
    if (!p->link)
        pmix_proc_expect(p);
    pmix_proc_pass(p, f);
}

void pmix_proc_pass(struct pmix_proc *p, const struct frame *f)
{
    if (p->link)
        link_send(p->link, f->type, f->node, f->body, f->size, NULL, 0);
}

void pmix_proc_ask(struct pmix_proc *p, uint32_t rank)
{
    if (p->link)
        link_send_msg(p->link, 0, MSG(member, rank, MEMBER_ASKED));
}

/* --- its start ---------------------------------------------------------------------- */

/* libpmix reads the machine's topology by hwloc. Devices of these two concern no MPI, and
 * a plug-in that looks for them connects to X servers, and loads OpenCL's drivers. */
static void make_env(struct strv *env)
{
    static const char name[] = "HWLOC_COMPONENTS";
    strv_push_all(env, environ);
    if (!strv_env_get(env, name))
        strv_env_set(env, name, "-gl,-opencl");
}

static int start(struct pmix_proc *p, struct ddp_err *err)
{
    int pair[2];
    SCOPED(strv_finish) struct strv env = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return err_errno(err, "cannot make a socketpair");
    OWNED char *protocol = xasprintf("%d", LINK_PROTOCOL);
    char *argv[] = {p->program, protocol, NULL};
    make_env(&env);
    struct child_spec spec = {.path = p->program,
                              .argv = argv,
                              .env = env.v,
                              .in = pair[1],
                              .out = listener_fd(p->listener),
                              .err = STDERR_FILENO,
                              .extra = p->first,
                              .group = true};
    enum child_step step;
    pid_t pid = child_spawn(&spec, &step);
    close(pair[1]);
    if (pid < 0) {
        err_spawn(err, "cannot start '%s'", p->program);
        close(pair[0]);
        return -1;
    }
    p->pid = pid;
    p->started = true;
    log_debug("PMIx server started as process %d", (int)pid);
    reap_watch(p->agent->reap, pid, on_exit_status, p);
    p->link = link_create(p->agent->loop, pair[0], FRAME_UP, NULL, &link_events, p);
    p->unmapped = p->map->n == 0;
    if (p->unmapped)
        agent_send(p->agent, MSG(map_request, p->agent->job.attempt));
    else
        send_orders(p);
    return 0;
}

static void start_if_needed(struct pmix_proc *p)
{
    struct ddp_err err;
    if (p->stopped || !p->listener)
        return;
    int rc = start(p, &err);
    drop_listener(p);
    if (rc < 0)
        fail(p, err.text);
}

void pmix_proc_expect(struct pmix_proc *p)
{
    p->needed = true;
    start_if_needed(p);
}

static void on_connect(int fd, const struct sockaddr *from, void *arg)
{
    struct pmix_proc *p = arg;
    struct ddp_err why;
    if (admission_accepted(agent_admission(p->agent), fd, from, NULL, &why) == 0) {
        sock_set_nonblock(fd, false); /* as libpmix expects */
        p->first = fd;
        start_if_needed(p);
    } else {
        listener_refused(p->listener, from, why.text);
        close(fd);
    }
}

/* --- life --------------------------------------------------------------------------- */

struct pmix_proc *pmix_proc_create(struct agent *a, const struct strv *map,
                                   void (*member)(const struct msg_member *m, void *arg),
                                   void *arg)
{
    struct ddp_err err;
    int port, fd;
    char *program = installed_file(INSTALLED_PROGRAM, "ddprun-pmix", X_OK);
    if (!program)
        return NULL;
    if ((fd = sock_listen("127.0.0.1", 0, &port, &err)) < 0) {
        log_warn("PMIx is not served: %s", err.text);
        free(program);
        return NULL;
    }
    struct pmix_proc *p = xcalloc(1, sizeof *p);
    *p = (struct pmix_proc){.agent = a,
                            .map = map,
                            .member = member,
                            .arg = arg,
                            .nlocal = a->share.nlocal,
                            .program = program,
                            .nspace = xasprintf(PMIX_NSPACE_FORMAT, a->job.id),
                            .dir = session_dir_name(),
                            .first = -1};
    p->uri = xasprintf("%s-server.%u;tcp4://127.0.0.1:%d", p->nspace, a->share.node_rank,
                       port);
    p->listener = listener_create(a->loop, fd, "PMIx", on_connect, p);
    p->deadline = loop_timer(a->loop, on_stop_deadline, p);
    return p;
}

void pmix_proc_destroy(struct pmix_proc *p)
{
    if (!p)
        return;
    drop_listener(p);
    drop_first(p);
    if (p->link)
        link_close(p->link);
    if (p->pid > 0) /* it exits, as its link is closed; or main() kills all children */
        reap_forget(p->agent->reap, p->pid);
    if (p->started)
        shm_cleanup_openmpi(p->nspace, p->nlocal);
    loop_free(p->deadline);
    free(p->program);
    free(p->dir);
    free(p->nspace);
    free(p->uri);
    free(p);
}

void pmix_proc_names(const struct pmix_proc *p, const char **nspace, const char **uri)
{
    *nspace = p->nspace;
    *uri = p->uri;
}

pid_t pmix_proc_pid(const struct pmix_proc *p)
{
    return p->pid;
}
