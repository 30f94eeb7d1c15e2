/* launcher/plugins/preflight/probe.c - --preflight, on the nodes' side
 *
 * Checks run in a child process, so that one that blocks (a dead file server, a name
 * server that does not answer) delays neither the agent nor the other checks: it is
 * killed after CHECK_TIMEOUT_S, reported as hanging, and a new child continues with the
 * next.
 *
 * The child writes records into a pipe: four bytes of length in host byte order, and
 * the packed body of a finding. Before each check it writes a record that holds only the
 * check's number, so the agent knows which check hangs or crashed.
 */
#define LOG_SUBSYS "preflight"
#include "launcher/agent/plugin.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "common/write_all.h"
#include "launcher/plugins/plugins.h"
#include "launcher/plugins/preflight/check.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

enum { CHECK_TIMEOUT_S = 10 };

struct probe {
    struct agent *agent; /* borrowed */
    struct msg_probe m;  /* owned */
    struct strv env;     /* owned: of ranks, the agent's with the job's variables; empty
                          * before the first PROBE */
    pid_t child;         /* 0: none */
    int fd;              /* owned: read end of the child's pipe; -1: none */
    int listener;        /* owned: see probe_listen(); -1: none */
    struct event *readable, *timer; /* owned */
    struct evbuffer *in;            /* owned */
    size_t current;                 /* the running check */
    bool complete;                  /* the child has run all checks */
};

static void probe_run_from(struct probe *p, size_t first);

/* --- the child ---------------------------------------------------------------------- */

static void write_record(int fd, const void *body, size_t n)
{
    uint32_t size = (uint32_t)n;
    OWNED char *record = xcalloc(1, sizeof size + n);
    memcpy(record, &size, sizeof size);
    memcpy(record + sizeof size, body, n);
    if (write_all(fd, record, sizeof size + n) < 0)
        _exit(1); /* the agent is gone */
}

static void write_begin(int fd, uint32_t number)
{
    write_record(fd, &number, sizeof number);
}

static void write_found(const struct msg_finding *f, void *arg)
{
    SCOPED(pack_finish) struct pack k = {0};
    msg_finding_pack(f, &k);
    write_record(*(int *)arg, k.p, k.n);
}

/* In the child: die with the agent, be the leader of a process group so that descendants
 * can be killed too, and restore the default signal actions. */
static void child_setup(pid_t agent)
{
    sigset_t none;
    sigemptyset(&none);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent)
        _exit(1);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    log_sink(NULL, NULL);
    log_setup("ddprun", NULL, "error", NULL);
}

static _Noreturn void run_checks_from(struct probe *p, size_t first, int fd)
{
    struct check_ctx ctx = {.probe = &p->m,
                            .self = p->agent->node,
                            .env = &p->env,
                            .root = "",
                            .found = write_found,
                            .arg = &fd};
    for (size_t i = first; i < CHECKS; i++) {
        if (checks[i].phase != p->m.phase || !checks[i].run)
            continue;
        write_begin(fd, (uint32_t)i);
        ctx.check = (uint32_t)i;
        checks[i].run(&ctx);
    }
    write_begin(fd, FINDING_END);
    _exit(0);
}

/* --- records from the child --------------------------------------------------------- */

static void report(struct probe *p, struct msg_finding f)
{
    agent_send(p->agent, MSG_FINDING, &f);
    msg_finding_finish(&f);
}

static void probe_close_pipe(struct probe *p)
{
    if (p->fd < 0)
        return;
    event_del(p->timer);
    loop_close_fd(&p->readable, &p->fd);
    evbuffer_drain(p->in, evbuffer_get_length(p->in));
}

static void kill_group(pid_t pid)
{
    if (pid > 0) {
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL); /* it may not have called setpgid() yet */
    }
}

/* The child has ended or is to be killed. `why`: the problem with the current check,
 * taken over; NULL if the child was through. */
static void probe_child_done(struct probe *p, char *why)
{
    size_t next = p->current + 1;
    bool complete = p->complete;
    kill_group(p->child);
    probe_close_pipe(p);
    if (!complete)
        report(p, (struct msg_finding){.check = (uint32_t)p->current, .problem = why});
    if (!complete && next < CHECKS)
        probe_run_from(p, next);
    else
        report(p, (struct msg_finding){.check = FINDING_END});
}

static void handle_record(struct probe *p, const unsigned char *body, size_t n)
{
    uint32_t number;
    if (n == sizeof number) {
        memcpy(&number, body, sizeof number);
        p->complete = number == FINDING_END;
        if (!p->complete && number < CHECKS)
            p->current = number;
        loop_arm(p->timer, CHECK_TIMEOUT_S * 1000);
        return;
    }
    if (p->agent->up)
        link_send(p->agent->up, MSG_FINDING, p->agent->node, body, n, NULL, 0);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct probe *p = arg;
    uint32_t size;
    int got = evbuffer_read(p->in, fd, -1);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    while (evbuffer_copyout(p->in, &size, sizeof size) == sizeof size &&
           evbuffer_get_length(p->in) >= sizeof size + size) {
        unsigned char *record = evbuffer_pullup(p->in, (ssize_t)(sizeof size + size));
        handle_record(p, record + sizeof size, size);
        evbuffer_drain(p->in, sizeof size + size);
    }
    if (got <= 0 || p->complete)
        probe_child_done(p, p->complete ? NULL
                                        : xstrdup("the check itself has died there; "
                                                  "see 'dmesg'"));
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct probe *p = arg;
    probe_child_done(p,
                     xasprintf("no answer after %d s: something hangs there, such as a "
                               "file server or a name server",
                               CHECK_TIMEOUT_S));
}

/* --- starting a child --------------------------------------------------------------- */

static void on_exit_of(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                       void *arg)
{
    struct probe *p = arg;
    p->child = p->child == pid ? 0 : p->child;
}

static void probe_run_from(struct probe *p, size_t first)
{
    struct ddp_err err;
    int ends[2] = {-1, -1};
    pid_t agent = getpid();
    p->complete = false;
    p->current = first;
    bool piped = pipe2(ends, O_CLOEXEC) == 0;
    pid_t pid = piped ? fork() : -1;
    if (pid == 0) {
        child_setup(agent);
        run_checks_from(p, first, ends[1]);
    }
    if (!piped)
        err_errno(&err, "cannot make a pipe");
    else if (pid < 0)
        err_spawn(&err, "cannot start a process");
    close_fd(&ends[1]);
    if (pid < 0) {
        close_fd(&ends[0]);
        report(p, (struct msg_finding){.check = (uint32_t)first,
                                       .problem = xstrdup(err.text)});
        report(p, (struct msg_finding){.check = FINDING_END});
        return;
    }
    if (p->child > 0) /* killed but not reaped yet */
        reap_forget(p->agent->reap, p->child);
    p->child = pid;
    reap_watch(p->agent->reap, pid, on_exit_of, p);
    p->fd = ends[0];
    evutil_make_socket_nonblocking(p->fd);
    p->readable = loop_watch(p->agent->loop, p->fd, EV_READ | EV_PERSIST, on_readable, p);
    loop_arm(p->timer, CHECK_TIMEOUT_S * 1000);
}

/* Listen for the node before this one, which gets the port from the launcher. Nothing is
 * accepted or read: its kernel and ours make the connection. */
static void probe_listen(struct probe *p)
{
    struct ddp_err err;
    int port;
    p->listener = sock_listen(NULL, 0, &port, &err);
    if (p->listener < 0) {
        report(p, (struct msg_finding){.check = CHECK_NETWORK,
                                       .problem = xstrdup(err.text)});
        return;
    }
    char addr[INET6_ADDRSTRLEN] = "";
    if (p->m.interface)
        sock_interface_addr(p->m.interface, addr, sizeof addr, NULL);
    report(p, (struct msg_finding){.check = CHECK_NETWORK,
                                   .key = xasprintf("%d %s", port, addr)});
}

/* --- hooks -------------------------------------------------------------------------- */

static int handle_probe(void *state, const struct frame *f, struct ddp_err *err)
{
    struct probe *p = state;
    struct msg_probe *m = f->m;
    if (p->fd >= 0 || !m->peer != !m->addr) /* the phase before is still running */
        return err_set(err, "an unexpected 'probe'");
    agent_use_own(p->agent, &m->argv, &m->env, &m->wdir);
    msg_probe_finish(&p->m);
    p->m = *m;
    *m = (struct msg_probe){0};
    if (p->env.n == 0) {
        strv_push_all(&p->env, environ);
        strv_env_set_all(&p->env, &p->m.env);
        probe_listen(p);
    }
    probe_run_from(p, 0);
    return 0;
}

static void probe_stop(void *state, bool again)
{
    struct probe *p = state;
    if (p->child > 0) {
        kill_group(p->child);
        reap_forget(p->agent->reap, p->child);
    }
    p->child = 0;
    close_fd(&p->listener);
    probe_close_pipe(p);
}

static void probe_init(void *state)
{
    struct probe *p = state;
    p->fd = p->listener = -1;
    p->timer = loop_timer(p->agent->loop, on_timeout, p);
    p->in = evbuffer_new();
    if (!p->in)
        abort(); /* out of memory, as in mem.h */
}

static void probe_fini(void *state)
{
    struct probe *p = state;
    probe_stop(p, false);
    loop_free(p->timer);
    evbuffer_free(p->in);
    msg_probe_finish(&p->m);
    strv_finish(&p->env);
}

static const struct agent_message messages[] = {{MSG_PROBE, handle_probe}, {0}};

const struct agent_plugin preflight_agent = {
    .name = "preflight",
    .state_size = sizeof(struct probe),
    .init = probe_init,
    .fini = probe_fini,
    .stop = probe_stop,
    .messages = messages,
};
