/* launcher/preflight/probe.c - see probe.h
 *
 * The child writes records into a pipe: four bytes of length in this machine's order, and
 * the body of a finding. Before each look a record of its number alone says that it
 * begins; so the agent knows which one hangs, or has died.
 */
#define LOG_SUBSYS "preflight"
#include "launcher/preflight/probe.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/preflight/bandwidth.h"
#include "launcher/preflight/check.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { LOOK_S = 10 };

struct probe {
    struct loop *loop;  /* borrowed */
    struct reap *reap;  /* borrowed */
    struct msg_probe m; /* owned */
    struct strv env;    /* owned: what ranks would have */
    unsigned self;
    pid_t looker, server;          /* 0: none */
    int fd;                        /* owned: the looker's pipe; -1 */
    struct event *readable, *late; /* owned */
    struct evbuffer *in;           /* owned */
    size_t current;                /* the look that runs */
    bool whole;                    /* the looker has come to its end */
    probe_fn fn;
    void *arg;
};

static void probe_look_from(struct probe *p, size_t first);

/* --- the child ---------------------------------------------------------------------- */

static void write_record(int fd, const void *body, size_t n)
{
    uint32_t size = (uint32_t)n;
    char *record = xcalloc(1, sizeof size + n);
    memcpy(record, &size, sizeof size);
    memcpy(record + sizeof size, body, n);
    for (size_t at = 0; at < sizeof size + n;) {
        ssize_t sent = write(fd, record + at, sizeof size + n - at);
        if (sent < 0 && errno != EINTR)
            _exit(1); /* nobody reads */
        at += sent > 0 ? (size_t)sent : 0;
    }
    free(record);
}

static void write_begin(int fd, uint32_t number)
{
    write_record(fd, &number, sizeof number);
}

static void write_found(const struct msg_found *f, void *arg)
{
    struct pack k = {0};
    msg_found_pack(f, &k);
    write_record(*(int *)arg, k.p, k.n);
    pack_finish(&k);
}

/* As a program of its own: it dies with the agent, has its group to itself, so that what
 * it starts is killed with it, and takes signals as anybody does. */
static void settle(pid_t agent)
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

static _Noreturn void look_from(struct probe *p, size_t first, int fd)
{
    struct ask ask = {.probe = &p->m,
                      .self = p->self,
                      .env = &p->env,
                      .root = "",
                      .found = write_found,
                      .arg = &fd};
    for (size_t i = first; i < CHECKS; i++) {
        if (checks[i].phase != p->m.phase || !checks[i].look)
            continue;
        write_begin(fd, (uint32_t)i);
        ask.check = (uint32_t)i;
        checks[i].look(&ask);
    }
    write_begin(fd, FOUND_END);
    _exit(0);
}

/* --- what it says ------------------------------------------------------------------- */

static void tell(struct probe *p, struct msg_found f)
{
    struct pack k = {0};
    msg_found_pack(&f, &k);
    p->fn(&k, p->arg);
    pack_finish(&k);
    msg_found_finish(&f);
}

static void probe_let_go(struct probe *p)
{
    if (p->fd < 0)
        return;
    event_del(p->late);
    event_free(p->readable);
    p->readable = NULL;
    close(p->fd);
    p->fd = -1;
    evbuffer_drain(p->in, evbuffer_get_length(p->in));
}

static void kill_group(pid_t pid)
{
    if (pid > 0) {
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL); /* it may not have its group yet */
    }
}

/* The looker is done, or done for: `why` is a sentence about the look it died of. */
static void probe_looked(struct probe *p, char *why)
{
    size_t next = p->current + 1;
    bool whole = p->whole;
    kill_group(p->looker);
    probe_let_go(p);
    if (!whole)
        tell(p, (struct msg_found){.check = (uint32_t)p->current, .problem = why});
    if (!whole && next < CHECKS)
        probe_look_from(p, next);
    else
        tell(p, (struct msg_found){.check = FOUND_END});
}

static void hear_record(struct probe *p, const unsigned char *body, size_t n)
{
    uint32_t number;
    if (n == sizeof number) {
        memcpy(&number, body, sizeof number);
        p->whole = number == FOUND_END;
        if (!p->whole && number < CHECKS)
            p->current = number;
        event_add(p->late, &(struct timeval){LOOK_S, 0});
        return;
    }
    struct pack k = {0};
    pack_bytes(&k, body, n);
    p->fn(&k, p->arg);
    pack_finish(&k);
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
        hear_record(p, record + sizeof size, size);
        evbuffer_drain(p->in, sizeof size + size);
    }
    if (got <= 0 || p->whole)
        probe_looked(p, p->whole ? NULL
                                 : xstrdup("the check itself has died there; "
                                           "see 'dmesg'"));
}

static void on_late(evutil_socket_t fd, short what, void *arg)
{
    struct probe *p = arg;
    probe_looked(p, xasprintf("no answer after %d s: something hangs there, such as a "
                              "file server or a name server",
                              LOOK_S));
}

/* --- verbs -------------------------------------------------------------------------- */

static void on_exit_of(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                       void *arg)
{
    struct probe *p = arg;
    p->looker = p->looker == pid ? 0 : p->looker;
    p->server = p->server == pid ? 0 : p->server;
}

static void cannot(struct probe *p, const char *what)
{
    tell(p, (struct msg_found){.check = (uint32_t)p->current,
                               .problem = xasprintf("%s: %s", what, strerror(errno))});
    tell(p, (struct msg_found){.check = FOUND_END});
}

static void probe_look_from(struct probe *p, size_t first)
{
    int ends[2];
    pid_t agent = getpid();
    p->whole = false;
    p->current = first;
    if (pipe2(ends, O_CLOEXEC) < 0) {
        cannot(p, "cannot make a pipe");
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        settle(agent);
        look_from(p, first, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        cannot(p, "cannot start a process");
        return;
    }
    if (p->looker > 0) /* killed, and not reaped yet */
        reap_forget(p->reap, p->looker);
    p->looker = pid;
    reap_watch(p->reap, pid, on_exit_of, p);
    p->fd = ends[0];
    evutil_make_socket_nonblocking(p->fd);
    p->readable =
        event_new(loop_base(p->loop), p->fd, EV_READ | EV_PERSIST, on_readable, p);
    if (!p->readable || event_add(p->readable, NULL) < 0 ||
        event_add(p->late, &(struct timeval){LOOK_S, 0}) < 0)
        abort(); /* as mem.h does when memory is gone */
}

/* Our end of the ring; the launcher passes the port on to the node before us. */
static void probe_serve(struct probe *p)
{
    struct ddp_err err;
    int port, fd = bandwidth_listen(&port, &err);
    pid_t agent = getpid(), pid = fd < 0 ? -1 : fork();
    if (pid == 0) {
        settle(agent);
        bandwidth_serve(fd, &p->m.token);
    }
    if (pid < 0 && fd >= 0)
        err_errno(&err, "cannot start a process");
    if (fd >= 0)
        close(fd);
    if (pid < 0) {
        tell(p, (struct msg_found){.check = CHECK_LATENCY, .problem = xstrdup(err.text)});
        return;
    }
    p->server = pid;
    reap_watch(p->reap, pid, on_exit_of, p);
    char addr[INET6_ADDRSTRLEN] = "";
    if (p->m.interface)
        sock_interface_addr(p->m.interface, addr, sizeof addr, NULL);
    tell(p, (struct msg_found){.check = CHECK_LATENCY,
                               .key = xasprintf("%d %s", port, addr)});
}

struct probe *probe_create(struct loop *loop, struct reap *reap, unsigned self,
                           struct msg_probe *m, probe_fn fn, void *arg)
{
    struct probe *p = xcalloc(1, sizeof *p);
    *p = (struct probe){.loop = loop,
                        .reap = reap,
                        .m = *m,
                        .self = self,
                        .fd = -1,
                        .fn = fn,
                        .arg = arg};
    *m = (struct msg_probe){0};
    p->late = evtimer_new(loop_base(loop), on_late, p);
    p->in = evbuffer_new();
    if (!p->late || !p->in)
        abort(); /* as mem.h does when memory is gone */
    strv_push_all(&p->env, environ);
    for (size_t i = 0; i < p->m.env.n; i++) {
        char *name = xstrdup(p->m.env.v[i]), *eq = strchr(name, '=');
        if (eq) {
            *eq = '\0';
            strv_env_set(&p->env, name, eq + 1);
        }
        free(name);
    }
    probe_serve(p);
    probe_look_from(p, 0);
    return p;
}

bool probe_go_on(struct probe *p, struct msg_probe *m)
{
    if (p->fd >= 0)
        return false;
    msg_probe_finish(&p->m);
    p->m = *m;
    *m = (struct msg_probe){0};
    probe_look_from(p, 0);
    return true;
}

void probe_destroy(struct probe *p)
{
    if (!p)
        return;
    pid_t children[] = {p->looker, p->server};
    for (size_t i = 0; i < ARRAY_LEN(children); i++) {
        if (children[i] > 0) {
            kill_group(children[i]);
            reap_forget(p->reap, children[i]);
        }
    }
    probe_let_go(p);
    event_free(p->late);
    evbuffer_free(p->in);
    msg_probe_finish(&p->m);
    strv_finish(&p->env);
    free(p);
}
