/* launcher/agent/agent.c - see agent.h
 *
 * Creation and destruction, and detecting the loss of the parent.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/agent.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/admission/admission.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/agent/guard.h"
#include "launcher/agent/machine.h"
#include "launcher/agent/ranks.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* --- watching the parent ------------------------------------------------------------ */

static void on_closed(struct link *l, const char *why, void *arg)
{
    agent_orphaned(arg, why);
}

static const struct link_events link_events = {agent_on_frame, on_closed};

/* Report the signal: the launcher then ends the job. */
static void on_ext_signal(int sig, void *arg)
{
    agent_send(arg, MSG(interrupted, (uint32_t)sig));
}

static void on_lifeline(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    char c;
    if (read(fd, &c, 1) > 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(a->lifelines); i++) {
        if (a->lifelines[i])
            event_del(a->lifelines[i]);
    }
    if (a->up)
        agent_orphaned(a, "a lifeline was closed");
}

/* If the launcher's machine answers, a silent launcher is stopped or blocked on I/O: it
 * resumes, or exits and closes the link. Do not kill the ranks for that. A parent that is
 * an agent sends 'relayed' while the launcher is silent; if it sends nothing, it is lost,
 * for the launcher, too. */
static void on_beat(void *arg)
{
    struct agent *a = arg;
    agent_report_late(a);
    if (a->relay && !a->pinged) /* 'relayed' is for the next agents only */
        relay_beat(a->relay);
    a->pinged = false;
    if (!a->up || a->suspended || !a->remote)
        return;
    int64_t heard_ms =
        !a->parent_is_agent && link_host_answers(a->up) ? now_ms() : link_heard_ms(a->up);
    if (heartbeat_silent(a->heartbeat, &a->silence, heard_ms))
        agent_orphaned(a, "no heartbeat within the node timeout");
}

static void on_copy_gone(evutil_socket_t fd, short what, void *arg)
{
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof host - 1);
    OWNED char *line = xasprintf(COPY_GONE, host);
    agent_cannot(arg, UINT32_MAX, EXIT_CANNOT_START, line);
}

/* Lifelines, other instances and heartbeat; the link itself reports its own end. */
static int watch_parent(struct agent *a, const struct agent_setup *s, struct ddp_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(a->lifelines); i++) {
        if (s->lifelines[i] < 0)
            continue;
        a->lifelines[i] =
            loop_event(a->loop, s->lifelines[i], EV_READ | EV_PERSIST, on_lifeline, a);
        if (event_add(a->lifelines[i], NULL) < 0) /* it may be any file */
            return err_set(err, "cannot watch a lifeline");
    }
    a->remote = s->keys != NULL;
    if (s->own && s->copies_gone_fd >= 0)
        a->copy_gone = loop_watch(a->loop, s->copies_gone_fd, EV_READ, on_copy_gone, a);
    a->heartbeat = heartbeat_create(a->loop, NODE_TIMEOUT_MS, on_beat, a);
    agent_set_timeout(a, NODE_TIMEOUT_MS); /* until a ping carries the job's own */
    return 0;
}

/* --- creation and destruction ------------------------------------------------------- */

static int agent_create(struct agent *a, const struct agent_setup *s, struct ddp_err *err)
{
    a->node = s->node;
    a->relays = s->relays;
    a->log_level = s->log_level;
    a->own = s->own;
    a->code = s->own ? EXIT_CANNOT_START : 0; /* until SHUTDOWN has the job's */
    if (!(a->loop = loop_create(err)) || !(a->reap = reap_create(a->loop, err)))
        return -1;
    a->ext_signals = ext_signals_create(a->loop, on_ext_signal, a);
    reap_after(a->reap, agent_check, a);
    agent_shutdown_init(a);
    agent_plugins_init(a);
    a->up = link_create(a->loop, s->fd, FRAME_DOWN, s->keys, &link_events, a);
    if (s->stdio)
        link_write_to(a->up, STDOUT_FILENO);
    guard_watch(s->fd);
    if (s->listen)
        agent_listen(a, s->listen, s->key);
    return watch_parent(a, s, err);
}

struct admission *agent_admission(struct agent *a)
{
    if (!a->admission)
        a->admission = admission_create(getpid());
    return a->admission;
}

static void agent_destroy(struct agent *a)
{
    agent_plugins_fini(a);
    admission_destroy(a->admission);
    relay_destroy(a->relay);
    ranks_destroy(a->ranks);
    link_destroy(a->up);
    grace_destroy(a->grace);
    ext_signals_destroy(a->ext_signals);
    heartbeat_destroy(a->heartbeat);
    struct event *events[] = {a->drain, a->strays, a->lifelines[0], a->lifelines[1],
                              a->copy_gone};
    for (size_t i = 0; i < ARRAY_LEN(events); i++)
        loop_free(events[i]);
    reap_destroy(a->reap);
    loop_destroy(a->loop);
    msg_job_finish(&a->job);
    msg_share_finish(&a->share);
}

static void send_log(enum log_level level, const char *line, void *arg)
{
    agent_send(arg, MSG(log, (uint32_t)level, msg_text(line)));
}

static void send_hello(struct agent *a, int fd)
{
    struct msg_hello m;
    machine_describe(fd, &m);
    m.at_ns = now_ns();
    agent_send(a, MSG_HELLO, &m);
    msg_hello_finish(&m);
}

int agent_run(const struct agent_setup *setup)
{
    struct agent a = {0};
    struct ddp_err err;
    /* its guard is called otherwise; without one the launcher is the guard, and `pkill -9
     * ddprun` must not match both */
    prctl(PR_SET_NAME, setup->keys ? "ddprun-agent" : "ddp-agent");
    signal(SIGPIPE, SIG_IGN);
    int code = EXIT_CANNOT_START;
    if (child_init(&err) == 0 && agent_create(&a, setup, &err) == 0) {
        log_sink(send_log, &a);
        if (setup->orders)
            agent_execute(&a, setup->orders);
        else
            send_hello(&a, setup->fd);
        code = loop_run(a.loop);
        code = code ? code : a.code;
        if (setup->orphaned)
            *setup->orphaned = a.orphaned;
        log_sink(NULL, NULL);
    } else {
        log_error("%s", err.text);
    }
    agent_destroy(&a);
    return code;
}
