/* launcher/spawn/starter.c - see starter.h
 *
 * A host's start is a small machine: queued -> starting -> joined, or failed. What ssh
 * says is kept (its last 4 KiB) for the diagnosis. Callers that have not proved anything
 * yet are strangers: few at a time, each with a deadline, none trusted with memory.
 */
#define LOG_SUBSYS "start"
#include "launcher/spawn/starter.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/link/summons.h"
#include "launcher/spawn/child.h"
#include "launcher/spawn/guest.h"
#include "launcher/spawn/program.h"
#include "launcher/spawn/ssh.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { SAID_MAX = 4096, TRIES = 3, AGAIN_MS = 400 };

enum start_state { START_NOT, START_QUEUED, START_RUNS, START_JOINED, START_FAILED };

struct start {
    struct starter *starter; /* borrowed: the one it is part of */
    unsigned node;
    enum start_state state;
    pid_t pid;              /* of its ssh; 0: none */
    int lifeline;           /* owned: the other end of its stdin; -1 */
    int said_fd;            /* owned: its stderr; -1 */
    struct event *readable; /* owned */
    struct event *again;    /* owned: the next try */
    char *said;             /* owned: the end of what it said */
    size_t nsaid;
    int tries;
};

struct starter {
    struct loop *loop;             /* borrowed */
    struct reap *reap;             /* borrowed */
    const struct msg_hosts *hosts; /* borrowed */
    struct secret key;
    const char *log_level; /* borrowed, may be NULL */
    struct starter_events events;
    void *arg;
    struct guests *guests; /* owned: the listener and the callers */
    struct strv calls;     /* where we can be called */
    char *ssh_path;        /* owned */
    struct start *starts;  /* owned, one per host */
    unsigned starting, nssh;
    bool stopped;
};

static void fill_window(struct starter *s);

static const struct host *host_of(const struct start *st)
{
    return &st->starter->hosts->hosts[st->node];
}

/* --- the end of a start ------------------------------------------------------------- */

static void start_let_go(struct start *st)
{
    if (st->lifeline >= 0)
        close(st->lifeline);
    st->lifeline = -1;
}

static void start_stop_listening(struct start *st)
{
    if (st->said_fd < 0)
        return;
    event_free(st->readable);
    close(st->said_fd);
    st->said_fd = -1;
}

static void start_fail(struct start *st, const char *line)
{
    struct starter *s = st->starter;
    if (st->state == START_FAILED)
        return;
    if (st->state == START_RUNS)
        s->starting--;
    st->state = START_FAILED;
    start_let_go(st);
    log_debug("%s", line);
    s->events.failed(st->node, line, s->arg);
    fill_window(s);
}

/* --- ssh ---------------------------------------------------------------------------- */

static void start_hear(struct start *st)
{
    char piece[1024];
    ssize_t n = read(st->said_fd, piece, sizeof piece);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        start_stop_listening(st);
        return;
    }
    if (!st->said)
        st->said = xcalloc(1, SAID_MAX + 1);
    size_t keep = st->nsaid + (size_t)n > SAID_MAX ? SAID_MAX - (size_t)n : st->nsaid;
    memmove(st->said, st->said + st->nsaid - keep, keep);
    memcpy(st->said + keep, piece, (size_t)n);
    st->nsaid = keep + (size_t)n;
    st->said[st->nsaid] = '\0';
    if (st->state == START_JOINED)
        log_info("%s: %.*s", host_of(st)->name, (int)strcspn(piece, "\n"), piece);
}

static void on_said(evutil_socket_t fd, short what, void *arg)
{
    start_hear(arg);
}

static void on_again(evutil_socket_t fd, short what, void *arg);

static void start_again(struct start *st)
{
    struct starter *s = st->starter;
    if (!st->again)
        st->again = evtimer_new(loop_base(s->loop), on_again, st);
    if (!st->again)
        abort();
    start_let_go(st);
    st->nsaid = 0;
    int64_t ms = (int64_t)AGAIN_MS * st->tries;
    event_add(st->again, &(struct timeval){ms / 1000, ms % 1000 * 1000});
}

static void on_ssh_exit(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                        void *arg)
{
    struct start *st = arg;
    struct starter *s = st->starter;
    st->pid = 0;
    s->nssh--;
    while (st->said_fd >= 0 && st->state == START_RUNS) {
        size_t before = st->nsaid;
        start_hear(st);
        if (st->nsaid == before)
            break;
    }
    start_stop_listening(st);
    if (st->state == START_RUNS) {
        struct ssh_diagnosis d;
        ssh_diagnose(host_of(st), s->hosts->agent, st->said ? st->said : "", status, &d);
        if (d.again && st->tries < TRIES && !s->stopped)
            start_again(st);
        else
            start_fail(st, d.text);
    }
    if (s->nssh == 0)
        s->events.idle(s->arg);
}

/* The summons go into the pipe whole: it is empty and they are shorter than it is. */
static int hand_summons(struct start *st)
{
    struct starter *s = st->starter;
    struct summons m = {.key = s->key,
                        .node = st->node,
                        .name = host_of(st)->name,
                        .log_level = s->log_level ? xstrdup(s->log_level) : NULL,
                        .calls = s->calls};
    char *text = summons_write(&m);
    size_t n = strlen(text);
    ssize_t sent = write(st->lifeline, text, n);
    free(m.log_level);
    secret_wipe(&m.key, sizeof m.key);
    secret_wipe(text, n);
    free(text);
    return sent == (ssize_t)n ? 0 : -1;
}

static void start_run(struct start *st)
{
    struct starter *s = st->starter;
    struct strv argv = {0};
    int in[2] = {-1, -1}, err[2] = {-1, -1};
    ssh_command(host_of(st), s->hosts->ssh, s->hosts->agent, &argv);
    enum child_step step = CHILD_SETUP;
    if (pipe2(in, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0) {
        struct child_spec spec = {.path = s->ssh_path,
                                  .argv = argv.v,
                                  .env = environ,
                                  .in = in[0],
                                  .out = -1,
                                  .err = err[1],
                                  .session = true};
        st->pid = child_spawn(&spec, &step);
    } else {
        st->pid = -1;
    }
    int error = errno;
    strv_finish(&argv);
    close(in[0]);
    close(err[1]);
    st->lifeline = in[1];
    st->said_fd = err[0];
    if (st->pid < 0) {
        st->pid = 0;
        start_let_go(st);
        close(st->said_fd);
        st->said_fd = -1;
        char *line = xasprintf("%s: cannot run '%s': %s", host_of(st)->name,
                               s->hosts->ssh, strerror(error));
        start_fail(st, line);
        free(line);
        return;
    }
    st->tries++;
    s->nssh++;
    sock_set_nonblock(st->said_fd, true);
    st->readable =
        event_new(loop_base(s->loop), st->said_fd, EV_READ | EV_PERSIST, on_said, st);
    if (!st->readable || event_add(st->readable, NULL) < 0)
        abort(); /* as mem.h does when memory is gone */
    reap_watch(s->reap, st->pid, on_ssh_exit, st);
    if (hand_summons(st) < 0)
        log_debug("%s: ssh has not taken the summons", host_of(st)->name);
}

static void on_again(evutil_socket_t fd, short what, void *arg)
{
    struct start *st = arg;
    if (st->state == START_RUNS && !st->starter->stopped)
        start_run(st);
}

static void fill_window(struct starter *s)
{
    for (unsigned i = 0; i < s->hosts->nhosts && !s->stopped; i++) {
        if (s->starting >= s->hosts->window)
            return;
        if (s->starts[i].state != START_QUEUED)
            continue;
        s->starts[i].state = START_RUNS;
        s->starting++;
        start_run(&s->starts[i]);
    }
}

/* --- calls -------------------------------------------------------------------------- */

static bool on_guest(unsigned node, int fd, const struct link_keys *keys,
                     const char *here, void *arg)
{
    struct starter *s = arg;
    if (node >= s->hosts->nhosts || s->starts[node].state != START_RUNS || s->stopped)
        return false;
    s->starts[node].state = START_JOINED;
    s->starting--;
    log_debug("%s has called", s->hosts->hosts[node].name);
    s->events.joined(node, fd, keys, here, s->arg);
    fill_window(s);
    return true;
}

/* --- verbs -------------------------------------------------------------------------- */

void starter_start(struct starter *s, unsigned node)
{
    s->starts[node].state = START_QUEUED;
    fill_window(s);
}

char *starter_missing(const struct starter *s, unsigned node)
{
    const struct start *st = &s->starts[node];
    const char *name = s->hosts->hosts[node].name;
    switch (st->state) {
    case START_QUEUED:
        return xasprintf(
            "%s: its turn has not come; --ssh-window lets more start at once", name);
    case START_RUNS:
        return xasprintf(
            "%s: ssh has not come through in time: does sshd there answer, "
            "and can the agent reach us at '%s'? --start-timeout waits longer",
            name, s->calls.v[0]);
    case START_JOINED:
        return xasprintf("%s: has called, and then said nothing", name);
    case START_NOT: /* another agent was to start it */
    case START_FAILED:
        break;
    }
    return xasprintf("%s: whoever was to start it has not said a word about it", name);
}

bool starter_has_ssh(const struct starter *s, pid_t pid)
{
    for (unsigned i = 0; i < s->hosts->nhosts; i++) {
        if (s->starts[i].pid == pid)
            return true;
    }
    return false;
}

bool starter_is_idle(const struct starter *s)
{
    return s->nssh == 0;
}

void starter_close(struct starter *s)
{
    guests_destroy(s->guests);
    s->guests = NULL;
}

void starter_stop(struct starter *s)
{
    s->stopped = true;
    for (unsigned i = 0; i < s->hosts->nhosts; i++) {
        struct start *st = &s->starts[i];
        start_let_go(st);
        /* it may be waiting for a connection, where it does not look at its stdin */
        if (st->pid > 0 && st->state != START_JOINED)
            kill(st->pid, SIGTERM);
    }
}

void starter_kill(struct starter *s)
{
    for (unsigned i = 0; i < s->hosts->nhosts; i++) {
        if (s->starts[i].pid > 0)
            kill(s->starts[i].pid, SIGKILL);
    }
}

struct starter *starter_create(struct loop *loop, struct reap *reap,
                               const struct msg_hosts *hosts, const struct secret *key,
                               const char *log_level, const struct starter_events *events,
                               void *arg, struct ddp_err *err)
{
    struct starter *s = xcalloc(1, sizeof *s);
    *s = (struct starter){.loop = loop,
                          .reap = reap,
                          .hosts = hosts,
                          .key = *key,
                          .log_level = log_level,
                          .events = *events,
                          .arg = arg};
    s->starts = xcalloc(hosts->nhosts, sizeof *s->starts);
    for (unsigned i = 0; i < hosts->nhosts; i++)
        s->starts[i] =
            (struct start){.starter = s, .node = i, .lifeline = -1, .said_fd = -1};
    char *word = xstrndup(hosts->ssh, strcspn(hosts->ssh, " \t"));
    int code;
    s->ssh_path = program_find(word, ".", getenv("PATH"), NULL, &code, err);
    free(word);
    if (!s->ssh_path || !(s->guests = guests_create(loop, key, on_guest, s, err))) {
        starter_destroy(s);
        return NULL;
    }
    guests_calls(s->guests, &s->calls);
    return s;
}

void starter_destroy(struct starter *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < s->hosts->nhosts; i++) {
        struct start *st = &s->starts[i];
        if (st->pid > 0) {
            kill(st->pid, SIGKILL);
            reap_forget(s->reap, st->pid);
        }
        start_let_go(st);
        start_stop_listening(st);
        if (st->again)
            event_free(st->again);
        free(st->said);
    }
    guests_destroy(s->guests);
    strv_finish(&s->calls);
    secret_wipe(&s->key, sizeof s->key);
    free(s->ssh_path);
    free(s->starts);
    free(s);
}
