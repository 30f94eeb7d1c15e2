/* launcher/plugins/preload/preload.c - see preload.h
 *
 * A request is one packet that carries descriptors; its text is in a memfd, so that
 * sending never blocks on a full socket. The helper's answers are short packets.
 *
 * Whether to start a helper depends on files of the user. They are read in a thread of
 * their own, with a deadline: neither the loop nor the start of the ranks waits for a
 * file system that does not answer.
 */
#define LOG_SUBSYS "preload"
#include "launcher/plugins/preload/preload.h"

#include "common/background.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/installed.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/transport/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Imports from a loaded shared file system may take minutes; a fork does not. */
enum { CHECK_S = 5, IMPORT_S = 300, FORK_S = 30, WRITE_MS = 1000 /* to a memfd */ };

/* The thread's while `call` runs, so it has copies of all it uses. */
struct check {
    struct background_call call;
    struct preload *p;    /* borrowed, the loop's; NULL: the result is not wanted */
    char *path, *modules; /* owned, as in struct preload_spec; with the next three */
    struct strv argv;
    cpu_set_t *cpus;
    size_t cpus_size;
    struct strv common; /* owned, from preload_common() */
    char *apart;        /* owned, the same */
    /* out */
    char *dir;    /* owned: of sitecustomize.py */
    char *record; /* owned: preload_record() */
    int rc;       /* -1: no helper is to be started, with the reason */
    struct ddp_err why;
};

struct preload {
    struct loop *loop;         /* borrowed */
    struct reap *reap;         /* borrowed */
    struct background *thread; /* owned: for `check`; NULL: it is done */
    struct check *check;       /* owned, the thread's */
    pid_t pid;                 /* of the helper; 0: exited */
    int wire;                  /* owned: socket to the helper */
    int outputs[2];            /* owned: its stdout and stderr, which it empties itself */
    int go;                    /* owned: pipe to the rank that waits; -1: none */
    struct event *events[2];   /* owned: readable wire, deadline */
    struct preload_events callbacks;
    void *arg;
    int64_t began_ms;
    unsigned dropped; /* number of cancelled requests whose answers are still to come */
    bool over;
};

/* The directory of sitecustomize.py; without ':', as it goes into PYTHONPATH. */
static char *find_directory(struct ddp_err *why)
{
    char *file = installed_file(INSTALLED_PROGRAM, "preload/sitecustomize.py", R_OK);
    if (file && !strchr(file, ':')) {
        *strrchr(file, '/') = '\0';
        return file;
    }
    free(file);
    err_set(why, "its Python half is not beside ddprun's programs");
    return NULL;
}

/* --- protocol ----------------------------------------------------------------------- */

/* A memfd with the strings of `first`, up to a NULL, and those of `env`, each with its
 * NUL. -1: errno. */
static int text_file(const char *const *first, const struct strv *env)
{
    int fd = memfd_create("ddprun-preload", MFD_CLOEXEC);
    int64_t until = now_ms() + WRITE_MS;
    int rc = fd < 0 ? -1 : 0;
    for (; rc == 0 && *first; first++)
        rc = sock_write_all(fd, *first, strlen(*first) + 1, until);
    for (size_t i = 0; rc == 0 && i < env->n; i++)
        rc = sock_write_all(fd, env->v[i], strlen(env->v[i]) + 1, until);
    if (rc < 0 && fd >= 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void close_go(struct preload *p)
{
    close_fd(&p->go);
}

static void finish(struct preload *p, const char *why)
{
    if (p->over)
        return;
    p->over = true;
    for (size_t i = 0; i < ARRAY_LEN(p->events); i++) {
        if (p->events[i])
            event_del(p->events[i]);
    }
    close_go(p);
    p->callbacks.over(why, p->arg);
}

/* Whether `pid` is our child, running or not yet reaped. The helper's word is not
 * trusted. */
static bool is_child(pid_t pid)
{
    siginfo_t info;
    return pid > 1 && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void on_ended(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                     void *arg)
{
    struct preload *p = arg;
    p->pid = 0;
}

/* The process that has done the imports: a fork of the one that was started, perhaps. */
static void take_helper(struct preload *p, pid_t pid)
{
    if (pid == p->pid || !is_child(pid))
        return;
    if (p->pid > 0)
        reap_forget(p->reap, p->pid);
    p->pid = pid;
    reap_watch(p->reap, pid, on_ended, p);
}

/* Since the helper has emptied the pipes, by a thread perhaps. */
static bool wrote_more(const struct preload *p)
{
    int out = 0, err = 0;
    return (ioctl(p->outputs[0], FIONREAD, &out) == 0 && out > 0) ||
           (ioctl(p->outputs[1], FIONREAD, &err) == 0 && err > 0);
}

static void on_packet(evutil_socket_t fd, short what, void *arg)
{
    struct preload *p = arg;
    char text[1024];
    ssize_t n = recv(p->wire, text, sizeof text - 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    text[n > 0 ? n : 0] = '\0';
    if (n > 0 &&
        p->dropped > 0) { /* any answer, failures included: the rank was cancelled */
        p->dropped--;
        if (p->go < 0)
            event_del(p->events[1]);
    } else if (strncmp(text, "no ", 3) == 0) {
        finish(p, text + 3);
    } else if (strncmp(text, "would ", 6) == 0 && p->callbacks.would) {
        p->callbacks.would(text + 6, p->arg);
    } else if (strncmp(text, "left ", 5) == 0) {
        log_info("an import is left to the ranks: %s", text + 5);
    } else if (strncmp(text, "ready ", 6) == 0 && wrote_more(p)) {
        finish(p, "an import has written something");
    } else if (strncmp(text, "ready ", 6) == 0) {
        int64_t ms = now_ms() - p->began_ms;
        take_helper(p, (pid_t)atoi(text + 6));
        log_info("imported in %.1f s: the ranks are forked", (double)ms / 1000);
        event_del(p->events[1]);
        p->callbacks.ready(ms, p->arg);
    } else if (strncmp(text, "pid ", 4) == 0 && p->go >= 0 &&
               is_child((pid_t)atoi(text + 4))) {
        event_del(p->events[1]);
        p->callbacks.forked((pid_t)atoi(text + 4), p->arg);
    } else {
        finish(p, n > 0 ? "the helper sent an invalid answer"
                        : "the interpreter that imports has ended");
    }
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct preload *p = arg;
    finish(p,
           p->check
               ? "the program, its script or the record of an earlier launch cannot be "
                 "read (stalled file system?)"
               : "the interpreter that imports does not answer");
}

/* --- requests ----------------------------------------------------------------------- */

void preload_fork(struct preload *p, const int streams[3], int extra, const char *cpus,
                  const struct strv *env)
{
    int go[2] = {-1, -1}, null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[6], n = 4;
    int text = text_file((const char *[]){cpus ? cpus : "", NULL}, env);
    bool good = null >= 0 && text >= 0 && pipe2(go, O_CLOEXEC) == 0;
    for (int i = 0; i < 3; i++)
        fds[i] = streams[i] < 0 ? null : streams[i];
    fds[3] = go[0];
    if (extra >= 0)
        fds[n++] = extra;
    fds[n++] = text;
    if (good)
        sock_send_fds(p->wire, fds, (size_t)n); /* fails only if it exited: on_packet() */
    close_go(p);
    p->go = go[1];
    int done[] = {null, text, go[0]};
    for (size_t i = 0; i < ARRAY_LEN(done); i++)
        close_fd(&done[i]);
    /* no answer will follow a failed request: time out at once */
    loop_arm(p->events[1], good ? FORK_S * 1000 : 0);
}

void preload_go(struct preload *p)
{
    if (write(p->go, "g", 1) != 1)
        log_debug("the forked rank has exited before it was let run");
    close_go(p);
}

void preload_drop(struct preload *p)
{
    close_go(p); /* the rank exits when the pipe closes */
    p->dropped++;
}

pid_t preload_pid(const struct preload *p)
{
    return p->pid;
}

/* --- start -------------------------------------------------------------------------- */

static int spawn_helper(struct preload *p, const struct check *c, int wire,
                        const int outputs[2], struct ddp_err *why)
{
    SCOPED(strv_finish) struct strv env = {0};
    strv_push_all(&env, c->common.v);
    const char *path = strv_env_get(&c->common, "PYTHONPATH");
    OWNED char *longer =
        path && *path ? xasprintf("%s:%s", c->dir, path) : xstrdup(c->dir);
    strv_env_set(&env, "PYTHONPATH", longer);
    OWNED char *self = xasprintf("%d", (int)getpid());
    strv_env_set(&env, "DDPRUN_PRELOAD", self);
    struct child_spec child = {.path = c->path,
                               .argv = c->argv.v,
                               .env = env.v,
                               .in = wire,
                               .out = outputs[0],
                               .err = outputs[1],
                               .cpus = c->cpus,
                               .cpus_size = c->cpus_size,
                               .group = true};
    enum child_step step;
    p->pid = child_spawn(&child, &step);
    int rc = p->pid < 0 ? err_spawn(why, "cannot start '%s'", c->path) : 0;
    p->pid = p->pid < 0 ? 0 : p->pid;
    if (p->pid > 0)
        reap_watch(p->reap, p->pid, on_ended, p);
    return rc;
}

/* Start the helper, send the first request and watch for answers. */
static int start_helper(struct preload *p, const struct check *c, struct ddp_err *why)
{
    int wires[2] = {-1, -1}, ends[2] = {-1, -1}, pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wires) < 0)
        return err_errno(why, "cannot make a socket");
    p->wire = wires[0];
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2; i++) {
        /* non-blocking: a helper that fills the pipe must not hang */
        if (pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0)
            rc = err_errno(why, "cannot make a pipe");
        else
            p->outputs[i] = pair[0], ends[i] = pair[1];
    }
    if (rc == 0)
        rc = spawn_helper(p, c, wires[1], ends, why);
    close(wires[1]);
    for (int i = 0; i < 2; i++)
        close_fd(&ends[i]);
    if (rc < 0)
        return rc;
    const char *const first[] = {c->modules, c->apart, c->record ? c->record : "", NULL};
    SCOPED(close_fd) int text = text_file(first, &c->common);
    if (text < 0 || sock_send_fds(p->wire, &text, 1) < 0)
        rc = err_errno(why, "cannot send the modules to be imported");
    p->events[0] = loop_watch(p->loop, p->wire, EV_READ | EV_PERSIST, on_packet, p);
    loop_arm(p->events[1], IMPORT_S * 1000);
    return rc;
}

static void check_free(struct check *c)
{
    strv_finish(&c->argv);
    strv_finish(&c->common);
    free(c->path);
    free(c->modules);
    free(c->cpus);
    free(c->apart);
    free(c->dir);
    free(c->record);
    free(c);
}

static void check_run(struct background_call *call)
{
    struct check *c = (struct check *)call;
    bool asks = strcmp(c->modules, PRELOAD_ASK) == 0;
    bool scans = asks || strcmp(c->modules, PRELOAD_AUTO) == 0;
    const struct preload_spec spec = {c->path, c->argv.v, c->modules};
    struct preload_script script;
    c->rc = -1;
    if (preload_fits(c->path, c->argv.v, &script, &c->why) < 0 ||
        (scans && preload_script_fits(c->path, c->argv.v, &script, &c->why) < 0) ||
        !(c->dir = find_directory(&c->why)))
        return;
    c->record = asks ? NULL : preload_record(&spec, &script, &c->common, c->apart);
    c->rc = c->record ? preload_known(c->record, &c->why) : 0;
}

static void on_checked(struct background_call *call, bool ran)
{
    struct check *c = (struct check *)call;
    struct preload *p = c->p;
    if (p) {
        p->check = NULL;
        background_end(p->thread);
        p->thread = NULL;
        if (c->rc < 0 || start_helper(p, c, &c->why) < 0)
            finish(p, c->why.text);
    }
    check_free(c);
}

struct preload *preload_create(struct loop *loop, struct reap *reap,
                               const struct preload_spec *spec,
                               const struct preload_events *events, void *arg,
                               struct ddp_err *why)
{
    struct strv common = {0};
    char *apart = NULL;
    struct background *thread = NULL;
    if (preload_common(spec->envs, spec->nenvs, &common, &apart, why) < 0 ||
        !(thread = background_create(loop, why))) {
        strv_finish(&common);
        free(apart);
        return NULL;
    }
    struct preload *p = xcalloc(1, sizeof *p);
    struct check *c = p->check = xcalloc(1, sizeof *c);
    *c = (struct check){.call = {check_run, on_checked, NULL},
                        .p = p,
                        .path = xstrdup(spec->path),
                        .modules = xstrdup(spec->modules),
                        .cpus_size = spec->cpus_size,
                        .common = common,
                        .apart = apart};
    strv_push_all(&c->argv, spec->argv);
    if (spec->cpus)
        c->cpus = xmemdup(spec->cpus, spec->cpus_size);
    *p = (struct preload){.loop = loop,
                          .reap = reap,
                          .thread = thread,
                          .check = c,
                          .wire = -1,
                          .outputs = {-1, -1},
                          .go = -1,
                          .callbacks = *events,
                          .arg = arg,
                          .began_ms = now_ms()};
    p->events[1] = loop_timer(loop, on_deadline, p);
    loop_arm(p->events[1], CHECK_S * 1000);
    background_run(thread, &c->call);
    return p;
}

void preload_destroy(struct preload *p)
{
    if (!p)
        return;
    if (p->check) /* freed by on_checked(), or left to a thread that does not return */
        p->check->p = NULL;
    background_end(p->thread);
    if (p->pid > 0) {
        reap_forget(p->reap, p->pid);
        kill(p->pid, SIGKILL);
    }
    for (size_t i = 0; i < ARRAY_LEN(p->events); i++)
        loop_free(p->events[i]);
    close_go(p);
    close_fd(&p->wire);
    for (int i = 0; i < 2; i++)
        close_fd(&p->outputs[i]);
    free(p);
}
