/* launcher/agent/agent_messages.c - an agent's handlers for messages from the launcher
 *
 * A table maps the message type to its handler. A handler fails only on a protocol error:
 * the agent then shuts down as if the launcher were lost.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/agent_impl.h"

#include "common/apps.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/admission/admission.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/ranks.h"

#include <signal.h>
#include <stdlib.h>

static void replace(struct strv *v, const struct strv *by)
{
    strv_finish(v);
    strv_push_all(v, by->v);
}

/* A peer that joined the wrong head must not run that head's program: command,
 * environment and directory are this host's own. */
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
    replace(&job->apps, &a->own->apps);
    replace(&job->user_set, &a->own->user_set);
    job->env_complete = true;
}

/* For each attempt. False: the launcher has got the reason. */
static bool prepare(struct agent *a)
{
    struct ddp_err err;
    admission_destroy(a->admission); /* the processes that it knows have ended */
    a->admission = NULL;
    if (agent_plugins_prepare(a, &a->job, &err) == 0)
        return true;
    agent_cannot(a, UINT32_MAX, EXIT_CANNOT_START, err.text);
    return false;
}

/* The ranks' thread looks for the programs while plug-ins prepare here. */
static void start_ranks(struct agent *a)
{
    struct ddp_err err;
    a->ranks = ranks_create(a, agent_drained, &err);
    if (!a->ranks)
        agent_cannot(a, UINT32_MAX, EXIT_CANNOT_START, err.text);
    else if (!prepare(a))
        ranks_stop_starting(a->ranks, false);
}

/* In an attempt with another plan, or as a spare that takes the place of a lost node. */
static void take_place(struct agent *a, struct msg_share *share)
{
    bool same_size = a->ranks && a->share.nlocal == share->nlocal;
    if (!same_size) {
        ranks_destroy(a->ranks);
        a->ranks = NULL;
    }
    msg_finish(MSG_SHARE, (union msg_any *)&a->share);
    a->share = *share;
    *share = (struct msg_share){0};
    if (!same_size)
        start_ranks(a);
    else if (prepare(a))
        ranks_again(a->ranks);
}

static void take_text(char **to, char **from)
{
    free(*to);
    *to = msg_take(from);
}

/* What another attempt with a new plan changes; ranks refer to the rest. */
static void take_plan(struct msg_job *job, struct msg_job *m)
{
    job->attempt = m->attempt;
    job->nranks = m->nranks;
    job->nslots = m->nslots;
    job->nnodes = m->nnodes;
    job->master_port = m->master_port;
    job->rank0_port = m->rank0_port;
    job->rows = m->rows; /* 0 if there is more than one rank now */
    job->columns = m->columns;
    take_text(&job->master_addr, &m->master_addr);
    take_text(&job->node_list, &m->node_list);
    take_text(&job->tasks_per_node, &m->tasks_per_node);
    take_text(&job->endpoints, &m->endpoints);
}

static int handle_job(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_job *m = f->m;
    if (a->job.id && a->state != AGENT_ENDED && !a->share.standby)
        return err_set(err, "a second 'job'");
    if (a->state == AGENT_ENDED) /* stopped before, perhaps before the first JOB */
        agent_shutdown_reset(a);
    if (a->job.id) {
        take_plan(&a->job, m);
        a->awaits_share = true;
        return 0;
    }
    a->job = *m;
    *m = (struct msg_job){0};
    if (a->own)
        run_own(a, &a->job);
    return apps_valid(&a->job.apps, a->job.argv.n) ? 0 : err_set(err, "a malformed job");
}

static int handle_share(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_share *m = f->m;
    if (a->awaits_share) {
        a->awaits_share = false;
        a->share.standby = m->standby; /* it has no place in this attempt */
        if (!m->standby)
            take_place(a, m);
        return 0;
    }
    if (!a->job.id || a->share.nlocal)
        return err_set(err, "an unexpected 'share'");
    a->share = *m;
    *m = (struct msg_share){0};
    start_ranks(a);
    return 0;
}

static int handle_input(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    const struct msg_input *m = f->m;
    if (a->ranks)
        ranks_input(a->ranks, m->data, m->ndata);
    return 0;
}

static int handle_credit(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    const struct msg_credit *m = f->m;
    if (a->ranks)
        ranks_credit(a->ranks, m->bytes);
    return 0;
}

static int handle_signal(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    int sig = (int)((const struct msg_signal *)f->m)->number;
    a->suspended = sig == SIGSTOP;
    if (a->ranks)
        ranks_signal(a->ranks, sig);
    return 0;
}

static int handle_window(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    const struct msg_window *m = f->m;
    if (m->rows == 0 || a->job.rows == 0) /* of a job that it has no order for yet */
        return 0;
    a->job.rows = m->rows;
    a->job.columns = m->columns;
    if (a->ranks)
        ranks_resize(a->ranks);
    return 0;
}

static int handle_terminate(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    const struct msg_terminate *m = f->m;
    a->again = m->again;
    if (a->ranks)
        ranks_stop_starting(a->ranks, a->again);
    AGENT_HOOKS(a, stop, a->again);
    agent_end(a, (int)m->number, m->grace_ms, m->drain_ms);
    return 0;
}

static int handle_restart(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_restart *m = f->m;
    if (!a->job.id || a->state != AGENT_ENDED)
        return err_set(err, "an unexpected 'restart'");
    agent_shutdown_reset(a);
    a->job.attempt = m->attempt;
    take_text(&a->job.master_addr, &m->addr);
    a->job.master_port = m->port;
    a->job.rank0_port = m->rank0_port;
    a->awaits_share = a->share.standby;
    if (a->ranks && !a->awaits_share && prepare(a))
        ranks_again(a->ranks);
    return 0;
}

static int handle_start_rank(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_start_rank *m = f->m;
    if (!a->ranks || !ranks_may_start_one(a->ranks, m->local))
        return err_set(err, "an unexpected 'start_rank'");
    strv_finish(&a->share.ranks[m->local].env);
    a->share.ranks[m->local].env = m->env;
    m->env = (struct strv){0};
    ranks_start_one(a->ranks, m->local);
    return 0;
}

static int handle_shutdown(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    const struct msg_shutdown *m = f->m;
    if (a->own)
        a->code = (int)m->code;
    agent_cut_off(a);
    return 0;
}

void agent_set_timeout(struct agent *a, int64_t ms)
{
    if (a->node_timeout_ms == ms || !a->remote)
        return;
    a->node_timeout_ms = ms;
    heartbeat_set_timeout(a->heartbeat, ms);
    link_keepalive(a->up, ms);
}

static int handle_ping(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    const struct msg_ping *m = f->m;
    a->pinged = true;
    agent_set_timeout(a, m->timeout_ms);
    if (f->node == NODE_ALL)
        agent_send(a, MSG(alive, m->sent_ns));
    else
        agent_send(a, MSG(pong, m->sent_ns, now_ns()));
    return 0;
}

static int handle_relayed(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    a->parent_is_agent = true;
    return 0;
}

static void on_up(const struct frame *f, void *arg)
{
    struct agent *a = arg;
    if (a->up)
        link_send(a->up, f->type, f->node, f->body, f->size, NULL, 0);
}

void agent_listen(struct agent *a, int port, const struct secret *key)
{
    struct ddp_err err;
    a->relay = relay_listen(a->loop, a->node, port, key, on_up, a, &err);
    if (!a->relay)
        log_warn("agents below call the launcher: %s", err.text);
}

static int handle_hosts(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct ddp_err why;
    if (a->relay || !a->relays)
        return err_set(err, "an unexpected 'hosts'");
    a->relay = relay_create(a->loop, a->reap, a->node, a->log_level, f->m, on_up,
                            agent_check, a, &why);
    if (!a->relay)
        agent_cannot(a, UINT32_MAX, EXIT_CANNOT_START, why.text);
    return 0;
}

static int (*const handlers[MSG_TYPES])(struct agent *a, const struct frame *f,
                                        struct ddp_err *err) = {
    [MSG_HOSTS] = handle_hosts,
    [MSG_JOB] = handle_job,
    [MSG_SHARE] = handle_share,
    [MSG_INPUT] = handle_input,
    [MSG_CREDIT] = handle_credit,
    [MSG_SIGNAL] = handle_signal,
    [MSG_TERMINATE] = handle_terminate,
    [MSG_SHUTDOWN] = handle_shutdown,
    [MSG_PING] = handle_ping,
    [MSG_RELAYED] = handle_relayed,
    [MSG_RESTART] = handle_restart,
    [MSG_WINDOW] = handle_window,
    [MSG_START_RANK] = handle_start_rank,
};

void agent_on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct agent *a = arg;
    struct ddp_err err;
    union msg_any m;
    struct frame decoded = *f;
    log_trace("received '%s', %zu bytes", msg_name(f->type), f->size);
    if (f->node != a->node && a->relay)
        relay_down(a->relay, f);
    if (f->node != a->node && f->node != NODE_ALL)
        return;
    int rc = msg_decode(&decoded, &m, &err);
    if (rc == 0) {
        rc = handlers[f->type] ? handlers[f->type](a, &decoded, &err)
                               : agent_plugins_message(a, &decoded, &err);
        msg_finish(f->type, &m);
    }
    if (rc < 0)
        agent_orphaned(a, err.text);
}

void agent_orders_add(struct agent_orders *o, enum msg_type type, const void *m)
{
    struct agent_order order = {.type = type};
    msg_pack(type, m, &order.body);
    o->first = xrealloc(o->first, o->nfirst + 1, sizeof *o->first);
    o->first[o->nfirst++] = order;
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
    a->share = *o->share;
    *o->share = (struct msg_share){0};
    start_ranks(a);
}
