/* launcher/plugins/mpi/pmix_server.c - ddprun-pmix: the PMIx server of a node's agent
 *
 * Started by the agent only, when the first rank connects: so other jobs do not pay for
 * it, libpmix is required only where it is used, and a libpmix that hangs or aborts does
 * not affect the agent. One process serves one namespace (libpmix cannot be initialized
 * twice). Descriptor 0 is its link to the agent, 1 the listening socket for the ranks,
 * CHILD_EXTRA_FD the first rank's connection, if there is one yet. It exits when the
 * agent closes the link.
 *
 * libpmix's requests to its host become FENCE, PEER, ABORT, MEMBER, SPAWN and RELATED
 * frames to the agent; the answers of other nodes arrive as frames. The ranks' data is
 * opaque. libpmix's callbacks run in its threads (pmix_calls.c); everything here runs in
 * the loop, but for call_deregister().
 *
 * For libpmix 4.2: clients are never deregistered one by one, which breaks the
 * descriptors of later clients.
 */
#define LOG_SUBSYS "pmix"
#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/offload.h"
#include "common/sock.h"
#include "launcher/contract.h"
#include "launcher/plugins/mpi/pmix_impl.h"
#include "launcher/plugins/mpi/pmix_list.h"
#include "launcher/plugins/mpi/pmix_listener.h"
#include "launcher/plugins/mpi/pmix_proc.h"
#include "launcher/plugins/mpi/pmix_related.h"
#include "launcher/plugins/mpi/pmix_sessions.h"
#include "launcher/plugins/mpi/pmix_world.h"
#include "launcher/plugins/mpi/session_dir.h"
#include "launcher/transport/child.h"

#include <fcntl.h>
#include <limits.h>
#include <pmix.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

/* ms: limit for libpmix to deregister its ranks; limit for sending a rank's MEMBER_LEFT
 * to the agent; how long an abort is held; s: how long a rank's next program waits before
 * a warning */
enum { DEREGISTER_MS = 1000, FLUSH_MS = 1000, ABORT_MS = 100, LATE_S = 10 };

extern char **environ;

/* --- requests of libpmix ------------------------------------------------------------ */

static void send_member(struct pmix_server *s, uint32_t rank, enum member_state state)
{
    pmix_send(s, MSG(member, rank, state));
}

static void send_abort(struct pmix_server *s, const struct pmix_call *c)
{
    /* Open MPI passes "N/A" for no text at all */
    bool said = c->text && c->text[0] && strcmp(c->text, "N/A") != 0;
    SCOPED(msg_abort_finish)
    struct msg_abort m = {.rank = c->rank, .code = c->status, .at_ns = now_ns()};
    m.text = xasprintf("called MPI_Abort with code %d%s%s%s", c->status,
                       said ? " and '" : "", said ? c->text : "", said ? "'" : "");
    pmix_send(s, MSG_ABORT, &m);
}

static void on_aborts(evutil_socket_t fd, short what, void *arg)
{
    struct pmix_server *s = arg;
    struct pmix_call *list = s->aborts, *c, *next;
    s->aborts = NULL;
    DL_FOREACH_SAFE (list, c, next) {
        send_abort(s, c);
        c->answer.done(PMIX_SUCCESS, c->cbdata);
        free(c->text);
        free(c);
    }
}

/* Open MPI 6 aborts where a connection breaks. The kernel closes those of a rank that
 * dies before it reports the exit, so an abort is held, with the rank: what it follows
 * from is then the earlier failure. */
static void hold_abort(struct pmix_server *s, struct pmix_call *c)
{
    if (!s->aborts)
        loop_arm(s->abort_timer, ABORT_MS);
    struct pmix_call *held = xmemdup(c, sizeof *c);
    c->text = NULL;
    DL_APPEND(s->aborts, held);
}

static void handle(struct pmix_server *s, struct pmix_call *c)
{
    switch (c->kind) {
    case CALL_JOINED:
        log_debug("rank %u has joined", c->rank);
        send_member(s, c->rank, MEMBER_JOINED);
        break;
    case CALL_LEFT:
        log_debug("rank %u leaves", c->rank);
        send_member(s, c->rank, MEMBER_LEFT);
        link_flush(s->link, now_ms() + FLUSH_MS); /* before the rank is answered */
        eventfd_write(s->left_fd, 1);
        return;
    case CALL_ABORT:
        hold_abort(s, c);
        return;
    case CALL_FENCE:
        pmix_fence(s, c);
        return;
    case CALL_MODEX:
        if (c->text)
            related_modex(s, c);
        else
            pmix_modex(s, c);
        return;
    case CALL_SPAWN:
        pmix_spawn(s, c);
        return;
    case CALL_RELATED:
        related_begin(s, c);
        return;
    case CALL_LOOKUP:
        names_lookup(s, c);
        return;
    case CALL_PUBLISH:
        names_publish(s, c);
        c->answer.done(c->status, c->cbdata);
        return;
    case CALL_UNPUBLISH:
        names_unpublish(s, c);
        break;
    case CALL_ANSWER:
        if (c->node == RELATED_NODE)
            related_committed(s, c);
        else
            pmix_answer_peer(s, c->node, c->id, c->status, c->data, c->size);
        return;
    }
    if (c->answer.done)
        c->answer.done(PMIX_SUCCESS, c->cbdata);
}

static void on_called(evutil_socket_t fd, short what, void *arg)
{
    pmix_calls_take(arg, handle);
}

/* Warn of a program that waits to be admitted: two programs that need each other's
 * MPI_Init wait forever. */
static void on_check(evutil_socket_t fd, short what, void *arg)
{
    unsigned rank, of;
    while (sessions_late(LATE_S * INT64_C(1000), &rank, &of))
        log_warn("rank %u has waited %d s to begin its next MPI program: rank %u's "
                 "earlier one is still connected",
                 rank, LATE_S, of);
}

/* --- the ranks that it serves ------------------------------------------------------- */

static int init_library(struct pmix_server *s, struct ddp_err *err)
{
    char name[PMIX_MAX_NSLEN];
    bool no = false, yes = true;
    pmix_rank_t rank = s->serve.node;
    snprintf(name, sizeof name, "%s-server", s->serve.nspace);
    struct pmix_list list = {0};
    pmix_list_add(&list, PMIX_SERVER_NSPACE, name, PMIX_STRING);
    pmix_list_add(&list, PMIX_SERVER_RANK, &rank, PMIX_PROC_RANK);
    pmix_list_add(&list, PMIX_SERVER_TMPDIR, s->dir, PMIX_STRING);
    pmix_list_add(&list, PMIX_SYSTEM_TMPDIR, s->dir, PMIX_STRING);
    pmix_list_add(&list, PMIX_HOSTNAME, s->serve.host, PMIX_STRING);
    pmix_list_add(&list, PMIX_SERVER_TOOL_SUPPORT, &no, PMIX_BOOL);
    pmix_list_add(&list, PMIX_SERVER_SHARE_TOPOLOGY, &yes, PMIX_BOOL);
    pmix_status_t rc = PMIx_server_init(pmix_calls_begin(s), list.v, list.n);
    s->inited = rc == PMIX_SUCCESS;
    pmix_list_finish(&list);
    return s->inited ? 0
                     : err_set(err, "libpmix does not start: %s", PMIx_Error_string(rc));
}

/* The ranks' environment was made before this server existed: check that it equals what
 * libpmix would have set. */
static int check_environment(struct pmix_server *s, struct ddp_err *err)
{
    const struct {
        const char *name, *value;
    } told[] = {{"PMIX_SERVER_URI41", s->serve.uri},
                {"PMIX_SECURITY_MODE", CONTRACT_PMIX_SECURITY},
                {"PMIX_BFROP_BUFFER_TYPE", CONTRACT_PMIX_BUFFERS},
                {"PMIX_GDS_MODULE", CONTRACT_PMIX_STORE}};
    SCOPED(strv_finish) struct strv env = {0};
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, s->serve.nspace, 0);
    if (PMIx_server_setup_fork(&proc, &env.v) != PMIX_SUCCESS)
        return err_set(err, "libpmix does not return its clients' environment");
    while (env.v && env.v[env.n])
        env.n++;
    for (size_t i = 0; i < ARRAY_LEN(told); i++) {
        const char *want = strv_env_get(&env, told[i].name);
        if (want && strcmp(want, told[i].value) != 0)
            return err_set(err, "libpmix %s wants %s=%s, the ranks have '%s'",
                           PMIx_Get_version(), told[i].name, want, told[i].value);
    }
    return 0;
}

static int make_dirs(struct pmix_server *s, struct ddp_err *err)
{
    const char *dir = s->serve.dir;
    if (mkdir(dir, 0700) < 0)
        return err_errno(
            err, "cannot make a directory in '%.*s' (TMPDIR) for MPI's session files",
            (int)(strrchr(dir, '/') - dir), dir);
    s->dir = dir; /* removed from now on */
    s->ranks_dir = xasprintf("%s/ranks", dir);
    return mkdir(s->ranks_dir, 0700) == 0
               ? 0
               : err_errno(err, "cannot make the directory '%s'", s->ranks_dir);
}

/* Takes over the contents of `serve`. */
static int serve(struct pmix_server *s, struct msg_serve *serve, struct ddp_err *err)
{
    s->serve = *serve;
    *serve = (struct msg_serve){0};
    s->left_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->left_fd < 0 || pipe2(s->calls, O_CLOEXEC) < 0 ||
        sock_set_nonblock(s->calls[0], true) < 0)
        return err_errno(err, "cannot make a pipe");
    s->called = loop_watch(s->loop, s->calls[0], EV_READ | EV_PERSIST, on_called, s);
    s->check = loop_event(s->loop, -1, EV_PERSIST, on_check, s);
    s->abort_timer = loop_timer(s->loop, on_aborts, s);
    s->lookup_timer = loop_timer(s->loop, names_on_timer, s);
    if (rankmap_read(&s->map, &s->serve.map, s->serve.nranks, err) < 0 ||
        make_dirs(s, err) < 0 || init_library(s, err) < 0 ||
        pmix_world_register(&s->serve, &s->map, s->ranks_dir, err) < 0 ||
        check_environment(s, err) < 0)
        return -1;
    pmix_listener_open(s->loop);
    loop_arm(s->check, LATE_S * 1000 / 2);
    s->serves = true;
    return 0;
}

/* Waits until it is done. */
static void call_deregister(void *nspace)
{
    PMIx_server_deregister_nspace(nspace, NULL, NULL);
}

static bool deregister(const struct pmix_server *s)
{
    const char *nspace = s->serve.nspace;
    if (!pmix_listener_empties(now_ms() + DEREGISTER_MS / 2))
        log_debug("an exited rank is still connected");
    struct offload *a = offload_begin(call_deregister, nspace, strlen(nspace) + 1, NULL);
    return a && offload_wait(a, DEREGISTER_MS);
}

/* After a timeout the process must exit without another call to libpmix. Nothing is
 * finalized or freed: its threads may still call until exit. */
static void finish(struct pmix_server *s)
{
    pmix_calls_end(s);
    if (s->inited && !deregister(s))
        log_debug("libpmix has not deregistered its ranks in time");
    if (s->dir)
        session_dir_remove(s->dir);
}

/* --- the agent ---------------------------------------------------------------------- */

static void on_log_line(enum log_level level, const char *line, void *arg)
{
    struct pmix_server *s = arg;
    link_send_msg(s->link, 0, MSG(log, (uint32_t)level, msg_text(line)));
}

static int handle_frame(struct pmix_server *s, const struct frame *f, struct ddp_err *err)
{
    struct msg_serve *m = f->m;
    if (f->type == MSG_SERVE) {
        if (s->serve.nspace || m->node >= m->map.n)
            return err_set(err, "an unexpected 'serve'");
        if (serve(s, m, err) == 0)
            return 0;
        finish(s);
        return -1;
    }
    if (s->serves && f->type == MSG_FENCE)
        pmix_on_fence(s, f->m);
    else if (s->serves && f->type == MSG_PEER)
        return pmix_on_peer(s, f->m, err);
    else if (s->serves && f->type == MSG_SPAWN_RESULT)
        pmix_on_spawned(s, f->m);
    else if (f->type == MSG_SPAWN_ENDED)
        related_job_ended(s, ((const struct msg_spawn_ended *)f->m)->id);
    else if (f->type == MSG_RELATED)
        return s->serves ? related_on_message(s, f->m, err) : 0;
    else if (s->serves && f->type == MSG_MEMBER)
        send_member(s, ((const struct msg_member *)f->m)->rank, MEMBER_ASKED);
    else
        return err_set(err, "unexpected frame '%s'", msg_name(f->type));
    return 0;
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct pmix_server *s = arg;
    struct ddp_err err = {""};
    union msg_any m;
    struct frame decoded = *f;
    int rc = msg_decode(&decoded, &m, &err);
    if (rc == 0) {
        rc = handle_frame(s, &decoded, &err);
        msg_finish(f->type, &m);
    }
    if (rc < 0)
        link_send_msg(s->link, 0, MSG(spawn_failed, UINT32_MAX, 0, err.text));
}

static void on_closed(struct link *l, const char *why, void *arg)
{
    struct pmix_server *s = arg;
    log_sink(NULL, NULL);
    loop_stop(s->loop, 0);
}

/* Remove an outer launcher's PMIx variables, which would make libpmix a client of it; and
 * use the settings that are already in the ranks' environment (contract.c). */
static void settle_environment(void)
{
    char name[256];
    for (char **e = environ; *e;) {
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "PMIX_", 5) == 0 && strncmp(*e, "PMIX_MCA_", 9) != 0 &&
            n < sizeof name) {
            memcpy(name, *e, n);
            name[n] = '\0';
            unsetenv(name);
        } else {
            e++;
        }
    }
    setenv("PMIX_MCA_gds", CONTRACT_PMIX_STORE, 1);
    setenv("PMIX_MCA_psec", CONTRACT_PMIX_SECURITY, 1);
    setenv("PMIX_SECURITY_MODE", CONTRACT_PMIX_SECURITY, 1);
    setenv("PMIX_BFROP_BUFFER_TYPE", CONTRACT_PMIX_BUFFERS, 1);
}

int main(int argc, char **argv)
{
    static const struct link_events events = {on_frame, on_closed};
    struct ddp_err err;
    struct pmix_server s = {0};
    int protocol;
    if (argc != 2 || !number_whole(argv[1], 0, INT_MAX, &protocol)) {
        printf("ddprun-pmix %s: started by ddprun for MPI programs, not by users\n",
               DDPRUN_VERSION);
        return argc > 1 && strcmp(argv[1], "--version") == 0 ? 0 : 2;
    }
    if (protocol != LINK_PROTOCOL)
        return PMIX_OTHER_VERSION;
    prctl(PR_SET_PDEATHSIG, 0); /* exit on a closed link instead, after removing files */
    signal(SIGPIPE, SIG_IGN);
    settle_environment();
    int link_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int listen_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0 || link_fd < 0 || listen_fd < 0 ||
        !(s.loop = loop_create(&err)))
        return 1;
    int first_fd = fcntl(CHILD_EXTRA_FD, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (first_fd >= 0)
        close(CHILD_EXTRA_FD);
    if (pmix_listener_set(listen_fd, first_fd, getppid()) < 0)
        return 1;
    s.link = link_create(s.loop, link_fd, FRAME_DOWN, NULL, &events, &s);
    log_sink(on_log_line, &s);
    loop_run(s.loop);
    if (s.serves)
        finish(&s);
    _exit(0); /* libpmix's threads still run: no exit handlers, no destructors */
}
