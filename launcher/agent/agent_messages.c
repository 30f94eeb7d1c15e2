/* launcher/agent/agent_messages.c - what the launcher says to an agent
 *
 * Frames come in through a table from message type to verb. A verb that fails means that
 * the two do not understand each other: the agent then ends as if the launcher were gone.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/agent_impl.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <signal.h>
#include <stdlib.h>

static void on_ask(const struct msg_vouch *v, void *arg)
{
    struct pack k = {0};
    msg_vouch_pack(v, &k);
    agent_send(arg, MSG_VOUCH, &k);
}

static int serve_store(struct agent *a, const struct msg_store *want)
{
    struct ddp_err err;
    int rc = 0;
    if (a->hosting)
        rc = store_host_renew(a->hosting, &err);
    else
        a->hosting = store_host_create(a->loop, want, a->admission, on_ask, a, &err);
    if (!a->hosting || rc < 0) {
        agent_cannot(a, UINT32_MAX, EXIT_CANNOT_START, err.text);
        return -1;
    }
    struct pack k = {0};
    pack_str(&k, store_host_addr(a->hosting));
    pack_u32(&k, (uint32_t)store_host_port(a->hosting));
    agent_send(a, MSG_READY, &k);
    return 0;
}

static int hear_store(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_store m = {0};
    if (a->hosting && a->state != AGENT_ENDED)
        return err_set(err, "a second 'store'");
    if (msg_store_unpack(f, &m, err) < 0)
        return -1;
    serve_store(a, &m);
    msg_store_finish(&m);
    return 0;
}

static void replace(struct strv *v, const struct strv *by)
{
    strv_finish(v);
    if (by->n > 0)
        strv_push_all(v, by->v);
}

/* A peer whose head is not the right one must not run a program of its choice: the
 * command, the environment, the folder and the modules are this host's own. */
static void run_own(struct msg_job *job, const struct msg_job *own)
{
    replace(&job->argv, &own->argv);
    replace(&job->env, &own->env);
    replace(&job->user_set, &own->user_set);
    free(job->wdir);
    job->wdir = xstrdup(own->wdir);
    free(job->preload);
    job->preload = xstrdup(own->preload);
    job->env_complete = true;
}

static void probe_own(struct msg_probe *probe, const struct msg_job *own)
{
    replace(&probe->argv, &own->argv);
    replace(&probe->env, &own->env);
    free(probe->wdir);
    probe->wdir = xstrdup(own->wdir);
}

static int hear_job(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    if (a->job.id)
        return err_set(err, "a second 'job'");
    if (msg_job_unpack(f, &a->job, err) < 0)
        return -1;
    if (a->own)
        run_own(&a->job, a->own);
    return 0;
}

static int hear_share(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_share m = {0};
    if (!a->job.id || a->ranks)
        return err_set(err, "a 'share' out of turn");
    if (msg_share_unpack(f, &m, err) < 0)
        return -1;
    a->ranks = ranks_create(a->loop, a->reap, &a->job, &m, &agent_ranks_events, a);
    msg_share_finish(&m);
    return 0;
}

static int hear_input(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    if (a->ranks)
        ranks_input(a->ranks, f->body, f->size);
    return 0;
}

static int hear_credit(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t n = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (a->ranks)
        ranks_credit(a->ranks, n);
    return 0;
}

static int hear_signal(struct agent *a, const struct frame *f, struct ddp_err *err)
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

static int hear_end(struct agent *a, const struct frame *f, struct ddp_err *err)
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
    probe_destroy(a->probe);
    a->probe = NULL;
    agent_end(a, sig, grace_ms, drain_ms);
    return 0;
}

static int hear_again(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t attempt = unpack_u32(&u), port = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (!a->ranks || a->state != AGENT_ENDED)
        return err_set(err, "an 'again' out of turn");
    agent_end_renew(a);
    a->job.attempt = attempt;
    a->job.master_port = port;
    ranks_again(a->ranks);
    return 0;
}

static int hear_leave(struct agent *a, const struct frame *f, struct ddp_err *err)
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

static int hear_ping(struct agent *a, const struct frame *f, struct ddp_err *err)
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

static int hear_vouch(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_vouch m;
    struct ddp_err why = {""};
    if (msg_vouch_unpack(f, &m, err) < 0)
        return -1;
    bool yes = admission_check(a->admission, (struct sockaddr *)&m.peer,
                               (struct sockaddr *)&m.local, &why) == 0;
    struct msg_vouched answer = {.id = m.id, .yes = yes};
    answer.why = yes ? NULL : xstrdup(why.text);
    struct pack k = {0};
    msg_vouched_pack(&answer, &k);
    agent_send(a, MSG_VOUCHED, &k);
    msg_vouched_finish(&answer);
    return 0;
}

static int hear_vouched(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_vouched m = {0};
    if (msg_vouched_unpack(f, &m, err) < 0)
        return -1;
    if (a->hosting)
        store_host_vouched(a->hosting, &m);
    msg_vouched_finish(&m);
    return 0;
}

static int hear_wireup(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    return a->ranks ? ranks_hear(a->ranks, f, err) : 0;
}

static void on_up(const struct frame *f, void *arg)
{
    struct agent *a = arg;
    if (a->up)
        link_send(a->up, f->type, f->node, f->body, f->size, NULL, 0);
}

static int hear_hosts(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_hosts m = {0};
    if (a->relay || !a->relays)
        return err_set(err, "a 'hosts' out of turn");
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

static void on_found(const struct pack *found, void *arg)
{
    struct agent *a = arg;
    if (a->up)
        link_send_pack(a->up, MSG_FOUND, a->node, found);
}

/* --preflight: questions instead of orders. */
static int hear_probe(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_probe m = {0};
    if (msg_probe_unpack(f, &m, err) < 0)
        return -1;
    bool fine = true;
    if (a->own)
        probe_own(&m, a->own);
    if (!a->probe)
        a->probe = probe_create(a->loop, a->reap, a->node, &m, on_found, a);
    else
        fine = probe_go_on(a->probe, &m);
    msg_probe_finish(&m);
    return fine ? 0 : err_set(err, "a 'probe' out of turn");
}

static int (*const verbs[MSG_TYPES])(struct agent *a, const struct frame *f,
                                     struct ddp_err *err) = {
    [MSG_HOSTS] = hear_hosts,   [MSG_STORE] = hear_store,  [MSG_JOB] = hear_job,
    [MSG_SHARE] = hear_share,   [MSG_INPUT] = hear_input,  [MSG_CREDIT] = hear_credit,
    [MSG_SIGNAL] = hear_signal, [MSG_END] = hear_end,      [MSG_LEAVE] = hear_leave,
    [MSG_PING] = hear_ping,     [MSG_VOUCH] = hear_vouch,  [MSG_VOUCHED] = hear_vouched,
    [MSG_PROBE] = hear_probe,   [MSG_FENCE] = hear_wireup, [MSG_PEER] = hear_wireup,
    [MSG_AGAIN] = hear_again,
};

void agent_hear(struct link *l, const struct frame *f, void *arg)
{
    struct agent *a = arg;
    struct ddp_err err;
    log_trace("heard '%s', %zu bytes", msg_name(f->type), f->size);
    if (f->node != a->node && a->relay)
        relay_down(a->relay, f);
    if (f->node != a->node && f->node != NODE_ALL)
        return;
    if (verbs[f->type] && verbs[f->type](a, f, &err) < 0)
        agent_orphaned(a, err.text);
}

/* The store first: its port is part of what the ranks are told. */
void agent_follow(struct agent *a, const struct agent_orders *o)
{
    if (serve_store(a, o->store) < 0)
        return;
    a->job = *o->job;
    *o->job = (struct msg_job){0};
    free(a->job.master_addr);
    a->job.master_addr = xstrdup(store_host_addr(a->hosting));
    a->job.master_port = (uint32_t)store_host_port(a->hosting);
    a->ranks = ranks_create(a->loop, a->reap, &a->job, o->share, &agent_ranks_events, a);
}
