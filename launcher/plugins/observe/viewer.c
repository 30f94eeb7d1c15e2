/* launcher/plugins/observe/viewer.c - see viewer.h
 *
 * The launcher opens the listening sockets and passes them on: a wrong address is an
 * error at the start, and the URL is known before the program runs.
 */
#define LOG_SUBSYS "job"
#include "launcher/plugins/observe/viewer.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/installed.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/sock.h"
#include "common/write_all.h"
#include "launcher/alloc/sched.h"
#include "launcher/control/control.h"
#include "launcher/control/rundir.h"
#include "launcher/job/events.h"
#include "launcher/job/plugin.h"
#include "launcher/transport/child.h"

#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* bytes that it may leave unread before output is dropped; ms that it gets at the end */
enum { UNREAD_MAX = 8 << 20, FINISH_MS = 4000 };

extern char **environ;

struct viewer {
    struct job *j;            /* borrowed */
    pid_t pid;                /* 0: it has ended */
    uint32_t peer;            /* its connection (control.h) */
    int output_ranks;         /* the output of so many is sent */
    int ui_fd, metrics_fd;    /* owned until it is started; -1: none */
    const char *metrics_file; /* borrowed; NULL: none */
    char token[40];
    char *token_file; /* owned: with the token, for Trainer; NULL: none */
    int token_fd;     /* owned: the same, locked as long as we live; -1 */
    char host[256];   /* of the page */
    int port;
    pid_t creator;
};

/* --- addresses ---------------------------------------------------------------------- */

/* "ADDRESS:PORT", "[v6]:PORT", ":PORT" or "PORT", the last two on the loopback. False:
 * none of them. */
static bool split_address(const char *text, char host[256], int *port)
{
    const char *colon = strrchr(text, ':'), *digits = colon ? colon + 1 : text;
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (!number_whole(digits, 0, 65535, port) || n >= 256)
        return false;
    if (n > 1 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    snprintf(host, 256, "%.*s", n ? (int)n : 256, n ? text : "127.0.0.1");
    return true;
}

static int listen_at(const char *option, const char *text, char host[256], int *port,
                     struct ddp_err *err)
{
    if (!split_address(text, host, port))
        return err_set(err, "%s takes ADDRESS:PORT or PORT, not '%.80s'", option, text);
    int fd = sock_listen(host, *port, port, err);
    return fd < 0 ? err_prefix(err, "%s", option) : fd;
}

/* A path has a slash or no colon, an address a colon, or only digits: a port. */
static bool is_address(const char *text)
{
    return !strchr(text, '/') &&
           (strchr(text, ':') || text[strspn(text, "0123456789")] == '\0');
}

static void make_token(char *text, size_t size)
{
    uint8_t bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        abort(); /* as without memory */
    for (size_t i = 0; i < sizeof bytes && 2 * i + 3 <= size; i++)
        sprintf(text + 2 * i, "%02x", bytes[i]);
}

/* --- telling the user --------------------------------------------------------------- */

/* As in a URL: an IPv6 address in brackets. */
static char *bracketed(const char *host)
{
    return xasprintf(strchr(host, ':') ? "[%s]" : "%s", host);
}

static void say_url(struct viewer *v)
{
    char own[256] = "localhost";
    gethostname(own, sizeof own - 1);
    bool any = strcmp(v->host, "0.0.0.0") == 0 || strcmp(v->host, "::") == 0;
    OWNED char *host = bracketed(any ? own : v->host);
    job_say(v->j, "ddprun: http://%s:%d/?t=%s", host, v->port, v->token);
    if (!sock_is_loopback(v->host))
        return;
    /* a node of a batch job is reached by way of the login node */
    const char *jump = sched_submit_host();
    const struct passwd *me = getpwuid(geteuid());
    OWNED char *user = xasprintf("%s%s", me ? me->pw_name : "", me ? "@" : "");
    job_say(v->j, "ddprun: from another machine: ssh -N -L %d:%s:%d %s%s%s%s%s%s",
            v->port, host, v->port, jump ? "-J " : "", jump ? user : "", jump ? jump : "",
            jump ? " " : "", user, own);
}

/* --- the program -------------------------------------------------------------------- */

static void on_exit_of_it(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                          void *arg)
{
    struct viewer *v = arg;
    v->pid = 0;
    events_unsubscribe(v->j, v);
    log_warn("the program behind --ui and --metrics has ended; the job goes on");
}

static void send_event(const char *line, size_t size, void *arg)
{
    struct viewer *v = arg;
    control_send(v->j->control, v->peer, line, size);
}

/* A warning of that program: an event, too. */
static void on_say(struct control *c, uint32_t peer, const json_t *request, void *arg)
{
    const struct viewer *v = arg;
    const char *text = text_of(request, "text");
    if (peer == v->peer && text)
        log_warn("%s", text);
}

static void send_config(struct viewer *v)
{
    const struct opts *o = v->j->opts;
    json_auto_t *config = json_pack(
        "{s:b, s:b, s:s?, s:s?, s:s, s:I}", "ui", v->ui_fd >= 0, "metrics",
        v->metrics_fd >= 0, "metrics_file", v->metrics_file, "metric", o->metric, "token",
        v->token, "ms", (json_int_t)((now_ns() - v->j->created_ns) / 1000000));
    control_reply(v->j->control, v->peer, config);
}

static int spawn(struct viewer *v, struct ddp_err *err)
{
    int pair[2];
    OWNED char *path = installed_file(INSTALLED_PROGRAM, "ddprun-view", X_OK);
    if (!path)
        return err_set(err, "ddprun-view is missing in this installation");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_errno(err, "cannot make a socketpair");
    char serve[] = "serve", *argv[] = {path, serve, NULL};
    struct child_spec spec = {.path = path,
                              .argv = argv,
                              .env = environ,
                              .in = pair[1],
                              .out = v->metrics_fd,
                              .err = STDERR_FILENO,
                              .extra = v->ui_fd,
                              .group = true};
    enum child_step step;
    v->pid = child_spawn(&spec, &step);
    if (v->pid < 0)
        err_spawn(err, "cannot start '%s'", path);
    close(pair[1]);
    v->peer = control_attach(v->j->control, pair[0]);
    return v->pid < 0 ? -1 : 0;
}

static int make_token_file(const char *dir, void *arg)
{
    struct viewer *v = arg;
    free(v->token_file);
    v->token_file = xasprintf("%s/" RUNDIR_TOKEN "%d", dir, (int)getpid());
    return open(v->token_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

/* Trainer reports to Kubeflow's controller where these variables name one: here, if rank
 * 0 can reach us and read the file. */
static int invite_trainer(struct viewer *v, struct ddp_err *err)
{
    static const char url_name[] = "KUBEFLOW_TRAINER_SERVER_URL";
    if (getenv(url_name) || !v->j->alloc->nodes[0].local)
        return 0; /* there is such a controller, or rank 0 is elsewhere */
    v->token_fd = rundir_make(make_token_file, v, err);
    if (v->token_fd < 0)
        return -1;
    if (flock(v->token_fd, LOCK_EX | LOCK_NB) < 0 ||
        write_all(v->token_fd, v->token, strlen(v->token)) < 0)
        return err_errno(err, "cannot write '%s'", v->token_file);
    OWNED char *host = bracketed(v->host);
    OWNED char *url = xasprintf("http://%s:%d/api/trainer", host, v->port);
    setenv(url_name, url, 1);
    setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", v->token_file, 1);
    return 0;
}

struct viewer *viewer_create(struct job *j, struct ddp_err *err)
{
    const struct opts *o = j->opts;
    struct viewer *v = xcalloc(1, sizeof *v);
    char host[256];
    int port;
    *v = (struct viewer){
        .j = j, .creator = getpid(), .ui_fd = -1, .metrics_fd = -1, .token_fd = -1};
    /* by default metrics are read from lines of rank 0 */
    v->output_ranks = o->ui || o->metric ? INT_MAX : 1;
    make_token(v->token, sizeof v->token);
    if (o->metrics && !is_address(o->metrics))
        v->metrics_file = o->metrics;
    bool listens = o->metrics && !v->metrics_file;
    if ((listens &&
         (v->metrics_fd = listen_at("--metrics", o->metrics, host, &port, err)) < 0) ||
        (o->ui && (v->ui_fd = listen_at("--ui", o->ui, v->host, &v->port, err)) < 0)) {
        viewer_destroy(v);
        return NULL;
    }
    if (o->ui && invite_trainer(v, err) < 0)
        log_warn("the page does not show what Hugging Face's Trainer reports: %s",
                 err->text);
    return v;
}

static void close_listeners(struct viewer *v)
{
    close_fd(&v->ui_fd);
    close_fd(&v->metrics_fd);
}

int viewer_start(struct viewer *v, struct ddp_err *err)
{
    if (spawn(v, err) < 0)
        return -1;
    if (v->ui_fd >= 0)
        say_url(v);
    send_config(v);
    control_handle(v->j->control, "say", on_say, v);
    close_listeners(v);
    reap_watch(v->j->reap, v->pid, on_exit_of_it, v);
    events_subscribe(v->j, send_event, v);
    return 0;
}

void viewer_output(struct viewer *v, int rank, unsigned stream, const void *data,
                   size_t size)
{
    char head[100];
    if (rank >= v->output_ranks || v->pid == 0 ||
        control_queued(v->j->control, v->peer) > UNREAD_MAX)
        return;
    int n = snprintf(head, sizeof head,
                     "{\"is\":\"output\",\"rank\":%d,\"stream\":%u,\"size\":%zu}\n", rank,
                     stream, size);
    control_send(v->j->control, v->peer, head, (size_t)n);
    control_send(v->j->control, v->peer, data, size);
}

void viewer_finish(struct viewer *v, struct evbuffer *status)
{
    int64_t deadline_ms = now_ms() + FINISH_MS;
    if (v->pid == 0)
        return;
    control_send(v->j->control, v->peer, evbuffer_pullup(status, -1),
                 evbuffer_get_length(status));
    reap_forget(v->j->reap, v->pid);
    control_flush(v->j->control, v->peer, deadline_ms);
    bool killed = false;
    while (waitpid(v->pid, NULL, WNOHANG) == 0) {
        int64_t late_ms = now_ms() - deadline_ms;
        if (late_ms > FINISH_MS) /* it hangs in the kernel: a dead file server */
            break;
        if (late_ms > 0 && !killed && v->metrics_file)
            log_warn("--metrics: the end of the job is not in '%s', as it could not be "
                     "written in %d s",
                     v->metrics_file, FINISH_MS / 1000);
        if (late_ms > 0)
            killed = kill(v->pid, SIGKILL) == 0;
        usleep(2000);
    }
    v->pid = 0;
}

void viewer_destroy(struct viewer *v)
{
    if (!v)
        return;
    events_unsubscribe(v->j, v);
    close_listeners(v);
    if (v->token_file && v->creator == getpid()) { /* not in the local agent, our fork */
        unlink(v->token_file);
        rundir_leave();
    }
    close_fd(&v->token_fd);
    free(v->token_file);
    free(v);
}
