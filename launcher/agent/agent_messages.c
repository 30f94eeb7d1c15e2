/* launcher/agent/agent_messages.c - an agent's handlers for messages from the launcher
 *
 * A table maps the message type to its handler. A handler fails only on a protocol error:
 * the agent then shuts down as if the launcher were lost.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/agent_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <signal.h>
#include <stdlib.h>

static void replace(struct strv *v, const struct strv *by)
{
    strv_finish(v);
    if (by->n > 0)
        strv_push_all(v, by->v);
}

/* A peer that joined the wrong head must not run that head's program: command,
 * environment, directory and preloaded modules are this host's own. */
void agent_use_own(const struct agent *a, struct strv *argv, struct strv *env,
                   char **wdir)
{
    if (!a->own)
        return;
    replace(argv, &a->own->argv);
    replace(env, &a->own->env);
    free(*wdir);
    *wdir = xstrdup(a->own->wdir);
}

static void run_own(const struct agent *a, struct msg_job *job)
{
    agent_use_own(a, &job->argv, &job->env, &job->wdir);
    replace(&job->user_set, &a->own->user_set);
    free(job->preload);
    job->preload = xstrdup(a->own->preload);
    job->env_complete = true;
}

/* For each attempt. False: the launcher has got the reason. */
static bool prepare(struct agent *a)
{
    struct ddp_err err;
    if (agent_plugins_prepare(a, &a->job, &err) == 0)
        return true;
    agent_cannot(a, UINT32_MAX, EXIT_CANNOT_START, err.text);
    return false;
}

static void start_ranks(struct agent *a, const struct msg_share *share)
{
    if (prepare(a))
        a->ranks = ranks_create(a->loop, a->reap, &a->job, share, &agent_ranks_events, a);
}

static int handle_job(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    if (a->job.id)
        return err_set(err, "a second 'job'");
    if (msg_job_unpack(f, &a->job, err) < 0)
        return -1;
    if (a->own)
        run_own(a, &a->job);
    return 0;
}

static int handle_share(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_share m = {0};
    if (!a->job.id || a->ranks)
        return err_set(err, "an unexpected 'share'");
    if (msg_share_unpack(f, &m, err) < 0)
        return -1;
    start_ranks(a, &m);
    msg_share_finish(&m);
    return 0;
}

static int handle_input(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    if (a->ranks)
        ranks_input(a->ranks, f->body, f->size);
    return 0;
}

static int handle_credit(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t n = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (a->ranks)
        ranks_credit(a->ranks, n);
    return 0;
}

static int handle_signal(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    int sig = (int)unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    a->suspended = sig == SIGSTOP;
    if (a->ranks)
        ranks_signal(a->ranks, sig);
    return 0;
}

static int handle_end(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    int sig = (int)unpack_u32(&u);
    uint32_t grace_ms = unpack_u32(&u);
    a->again = unpack_u8(&u) != 0;
    uint32_t drain_ms = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (a->ranks)
        ranks_stop_starting(a->ranks, a->again);
    AGENT_HOOKS(a, stop, a->again);
    agent_end(a, sig, grace_ms, drain_ms);
    return 0;
}

static int handle_again(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t attempt = unpack_u32(&u), port = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (!a->ranks || a->state != AGENT_ENDED)
        return err_set(err, "an unexpected 'again'");
    agent_shutdown_reset(a);
    a->job.attempt = attempt;
    a->job.master_port = port;
    if (prepare(a))
        ranks_again(a->ranks);
    return 0;
}

static int handle_leave(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    int code = (int)unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (a->own)
        a->code = code;
    agent_cut_off(a);
    return 0;
}

static int handle_ping(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint64_t t = unpack_u64(&u);
    uint32_t node_timeout_ms = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    agent_set_timeout(a, node_timeout_ms);
    struct pack k = {0};
    pack_u64(&k, t);
    pack_u64(&k, (uint64_t)now_ns());
    agent_send(a, MSG_PONG, &k);
    return 0;
}

static int handle_mpi(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    return a->ranks ? ranks_on_frame(a->ranks, f, err) : 0;
}

static void on_up(const struct frame *f, void *arg)
{
    struct agent *a = arg;
    if (a->up)
        link_send(a->up, f->type, f->node, f->body, f->size, NULL, 0);
}

static int handle_hosts(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_hosts m = {0};
    if (a->relay || !a->relays)
        return err_set(err, "an unexpected 'hosts'");
    if (msg_hosts_unpack(f, &m, err) < 0)
        return -1;
    struct ddp_err why;
    a->relay = relay_create(a->loop, a->reap, a->node, a->log_level, &m, on_up,
                            agent_check, a, &why);
    if (!a->relay)
        agent_cannot(a, UINT32_MAX, EXIT_CANNOT_START, why.text);
    msg_hosts_finish(&m);
    return 0;
}

static int (*const handlers[MSG_TYPES])(struct agent *a, const struct frame *f,
                                        struct ddp_err *err) = {
    [MSG_HOSTS] = handle_hosts,   [MSG_JOB] = handle_job,
    [MSG_SHARE] = handle_share,   [MSG_INPUT] = handle_input,
    [MSG_CREDIT] = handle_credit, [MSG_SIGNAL] = handle_signal,
    [MSG_END] = handle_end,       [MSG_LEAVE] = handle_leave,
    [MSG_PING] = handle_ping,     [MSG_FENCE] = handle_mpi,
    [MSG_PEER] = handle_mpi,      [MSG_AGAIN] = handle_again,
};

void agent_on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct agent *a = arg;
    struct ddp_err err;
    log_trace("received '%s', %zu bytes", msg_name(f->type), f->size);
    if (f->node != a->node && a->relay)
        relay_down(a->relay, f);
    if (f->node != a->node && f->node != NODE_ALL)
        return;
    int rc = handlers[f->type] ? handlers[f->type](a, f, &err)
                               : agent_plugins_message(a, f, &err);
    if (rc < 0)
        agent_orphaned(a, err.text);
}

void agent_orders_add(struct agent_orders *o, enum msg_type type, struct pack *k)
{
    o->first = xrealloc(o->first, o->nfirst + 1, sizeof *o->first);
    o->first[o->nfirst++] = (struct agent_order){type, *k};
    *k = (struct pack){0};
}

void agent_orders_finish(struct agent_orders *o)
{
    for (size_t i = 0; i < o->nfirst; i++)
        pack_finish(&o->first[i].body);
    free(o->first);
    o->first = NULL;
    o->nfirst = 0;
}

void agent_execute(struct agent *a, const struct agent_orders *o)
{
    for (size_t i = 0; i < o->nfirst; i++) {
        const struct frame f = {.type = o->first[i].type,
                                .node = a->node,
                                .body = o->first[i].body.p,
                                .size = o->first[i].body.n};
        agent_on_frame(a->up, &f, a);
    }
    a->job = *o->job;
    *o->job = (struct msg_job){0};
    start_ranks(a, o->share);
}
