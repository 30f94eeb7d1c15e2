/* launcher/agent/agent.c - see agent.h
 *
 * Frames come in through a table from message type to verb. The ranks are started a few
 * per turn of the loop, so that the first ones are served while the last ones start.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/agent.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/hosting.h"
#include "launcher/agent/machine.h"
#include "launcher/agent/outside.h"
#include "launcher/agent/ranks.h"
#include "launcher/agent/relay.h"
#include "launcher/agent/sweep.h"
#include "launcher/door/door.h"
#include "launcher/policy/grace.h"
#include "launcher/preflight/probe.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* How long output may go on after nothing is left that could write it. */
enum { DRAIN_MS = 2000 };

/* ms: how long ranks have to go before a look for what has left their groups. It costs
 * one or two ms, and most jobs are gone by then. */
enum { STRAYS_MS = 10 };

/* How long nothing may be heard from above, where a ping comes every second. */
enum { SILENCE_MS = 30000 };

struct agent {
    struct loop *loop; /* owned */
    struct reap *reap; /* owned */
    struct link *up;   /* owned; NULL when it has ended */
    unsigned node;
    struct outside *outside;    /* owned */
    struct door *door;          /* owned */
    struct hosting *hosting;    /* owned; the master node's */
    struct msg_job job;         /* owned */
    struct ranks *ranks;        /* owned; NULL until there is work */
    struct grace *grace;        /* owned */
    struct event *drain;        /* owned: deadline */
    struct event *strays;       /* owned: the look for them is due */
    int strays_sig;             /* what they get then */
    struct event *lifelines[2]; /* owned; NULL: none */
    struct event *silence;      /* owned: is anybody above; NULL on this machine */
    struct relay *relay;        /* owned; NULL: nobody is below */
    struct probe *probe;        /* owned; NULL: this is no --preflight */
    const struct secret *key;   /* borrowed: for those below */
    const char *log_level;      /* borrowed */
    const struct msg_job *own;  /* borrowed: a peer's; NULL */
    int code;                   /* to end with */
    bool again;                 /* another attempt may follow this end */
    bool suspended;             /* the launcher has been stopped: its silence is fine */
    bool gone;                  /* asked to end, and no process is left */
    bool ended;                 /* and all output is sent */
};

/* --- upwards ------------------------------------------------------------------------ */

static void send_pack(struct agent *a, enum msg_type type, struct pack *k)
{
    if (a->up)
        link_send_pack(a->up, type, a->node, k);
    pack_finish(k);
}

static void send_cannot(struct agent *a, uint32_t rank, int code, const char *text)
{
    char *copy = xstrdup(text);
    struct msg_cannot m = {.rank = rank, .code = (uint32_t)code, .text = copy};
    struct pack k = {0};
    msg_cannot_pack(&m, &k);
    send_pack(a, MSG_CANNOT, &k);
    free(copy);
}

static void on_log_line(enum log_level level, const char *line, void *arg)
{
    struct agent *a = arg;
    struct pack k = {0};
    pack_u8(&k, (unsigned)level);
    pack_bytes(&k, line, strlen(line));
    send_pack(a, MSG_LOG, &k);
}

static void say_hello(struct agent *a, int fd)
{
    struct msg_hello m;
    struct pack k = {0};
    machine_describe(fd, &m);
    msg_hello_pack(&m, &k);
    send_pack(a, MSG_HELLO, &k);
    msg_hello_finish(&m);
}

/* --- the end ------------------------------------------------------------------------ */

static void agent_check(struct agent *a);

/* The agents below are not ours to end, nor what an ssh may have below it here; and the
 * interpreter that ranks are forked from stays for the next attempt. */
static enum sweep_rule spare_others(pid_t pid, pid_t group, void *arg)
{
    struct agent *a = arg;
    if (a->ranks && ranks_has_server(a->ranks, pid))
        return SWEEP_SPARE; /* it cleans up behind the ranks, and then goes by itself */
    bool ssh = a->relay && relay_has_ssh(a->relay, pid);
    return ssh || (a->ranks && ranks_helper(a->ranks) == pid) ? SWEEP_SPARE : SWEEP_TAKE;
}

/* A rank that runs gets its signals with its whole group. */
static enum sweep_rule pass_live_groups(pid_t pid, pid_t group, void *arg)
{
    struct agent *a = arg;
    if (a->ranks && ranks_has_group(a->ranks, group))
        return SWEEP_PASS;
    return spare_others(pid, group, arg);
}

/* Is any process of the job left here? */
static bool nothing_left(struct agent *a)
{
    if (!reap_now(a->reap))
        return true;
    if (a->ranks && ranks_running(a->ranks)) /* one may have ended since */
        return false;
    bool others = (a->relay && !relay_is_idle(a->relay)) ||
                  (a->ranks && ranks_helper(a->ranks) > 0);
    return others && sweep_signal(0, spare_others, a) == 0;
}

static void on_strays(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    if (!a->gone && reap_now(a->reap))
        sweep_signal(a->strays_sig, pass_live_groups, a);
}

/* The ranks by their process groups, what has left those one by one. */
static void end_with(int sig, void *arg)
{
    struct agent *a = arg;
    if (a->ranks) {
        ranks_stop_starting(a->ranks, a->again);
        ranks_signal(a->ranks, sig);
        if (sig != SIGKILL)
            ranks_signal(a->ranks, SIGCONT); /* who is stopped hears nothing */
    }
    if (sig != SIGKILL) {
        a->strays_sig = sig;
        event_add(a->strays, &(struct timeval){0, STRAYS_MS * 1000});
    } else if (reap_now(a->reap)) {
        sweep_signal(sig, spare_others, a);
    }
    agent_check(a);
}

static void agent_stop_if_alone(struct agent *a)
{
    if (a->gone && !a->up && (!a->relay || relay_is_idle(a->relay)))
        loop_stop(a->loop, 0);
}

static void agent_drained(struct agent *a)
{
    if (!a->gone || a->ended || (a->ranks && !ranks_drained(a->ranks)))
        return;
    a->ended = true;
    event_del(a->drain);
    if (a->up)
        link_send(a->up, MSG_ENDED, a->node, NULL, 0, NULL, 0);
}

/* Has the ending come to its end? Asked after every reaping. */
static void agent_check(struct agent *a)
{
    if (a->gone || !grace_began(a->grace) || !nothing_left(a))
        return;
    a->gone = true;
    grace_done(a->grace);
    struct timeval tv = {DRAIN_MS / 1000, 0};
    event_add(a->drain, &tv);
    agent_drained(a);
    agent_stop_if_alone(a);
}

static void on_drain_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    if (a->ranks)
        ranks_cut(a->ranks);
    if (a->relay && !a->up)
        relay_stop(a->relay, true);
    agent_drained(a);
}

static void on_reaped(void *arg)
{
    agent_check(arg);
    agent_stop_if_alone(arg);
}

/* Nothing comes from above any more: those below are let go, with a deadline. */
static void agent_cut_off(struct agent *a)
{
    log_sink(NULL, NULL);
    link_close(a->up);
    a->up = NULL;
    a->again = false;
    if (a->ranks)
        ranks_stop_starting(a->ranks, false);
    if (a->relay) {
        relay_stop(a->relay, false);
        event_add(a->drain, &(struct timeval){DRAIN_MS / 1000, 0});
    }
    grace_begin(a->grace, SIGKILL, 0);
    agent_check(a);
    agent_stop_if_alone(a);
}

/* Nobody above: nothing that runs here can be of use to anyone. */
static void agent_orphaned(struct agent *a, const char *why)
{
    log_debug("the launcher is gone: %s", why ? why : "it closed the link");
    agent_cut_off(a);
}

/* --- what the ranks do -------------------------------------------------------------- */

static void on_out(int rank, unsigned stream, const void *data, size_t n, void *arg)
{
    struct agent *a = arg;
    struct pack k = {0};
    pack_u32(&k, (uint32_t)rank);
    pack_u8(&k, stream);
    if (a->up)
        link_send(a->up, MSG_OUT, a->node, k.p, k.n, data, n);
    pack_finish(&k);
    if (n == 0)
        agent_drained(a);
}

static void on_error(int rank, const char *text, void *arg)
{
    struct pack k = {0};
    pack_u32(&k, (uint32_t)rank);
    pack_str(&k, text);
    send_pack(arg, MSG_ERROR, &k);
}

static void on_exited(const struct msg_exit *how, void *arg)
{
    struct agent *a = arg;
    struct msg_exit m = *how;
    struct pack k = {0};
    m.told = grace_began(a->grace);
    msg_exit_pack(&m, &k);
    send_pack(a, MSG_EXIT, &k);
}

static void on_taken(uint32_t n, void *arg)
{
    struct pack k = {0};
    pack_u32(&k, n);
    send_pack(arg, MSG_CREDIT, &k);
}

static void on_spawned(void *arg)
{
    struct pack k = {0};
    pack_u64(&k, (uint64_t)now_ns());
    send_pack(arg, MSG_SPAWNED, &k);
}

static void on_cannot(uint32_t rank, int code, const char *text, void *arg)
{
    send_cannot(arg, rank, code, text);
}

static void on_send(enum msg_type type, const struct pack *head, const void *data,
                    size_t size, void *arg)
{
    struct agent *a = arg;
    if (a->up)
        link_send(a->up, type, a->node, head->p, head->n, data, size);
}

static const struct ranks_events ranks_events = {
    .out = on_out,
    .error = on_error,
    .exited = on_exited,
    .taken = on_taken,
    .spawned = on_spawned,
    .send = on_send,
    .cannot = on_cannot,
};

/* --- what the launcher says --------------------------------------------------------- */

static void on_ask(const struct msg_vouch *v, void *arg)
{
    struct pack k = {0};
    msg_vouch_pack(v, &k);
    send_pack(arg, MSG_VOUCH, &k);
}

static int serve_store(struct agent *a, const struct msg_store *want)
{
    struct ddp_err err;
    int rc = 0;
    if (a->hosting)
        rc = hosting_renew(a->hosting, &err);
    else
        a->hosting = hosting_create(a->loop, want, a->door, on_ask, a, &err);
    if (!a->hosting || rc < 0) {
        send_cannot(a, UINT32_MAX, EXIT_CANNOT_START, err.text);
        return -1;
    }
    struct pack k = {0};
    pack_str(&k, hosting_addr(a->hosting));
    pack_u32(&k, (uint32_t)hosting_port(a->hosting));
    send_pack(a, MSG_READY, &k);
    return 0;
}

static int hear_store(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_store m = {0};
    if (a->hosting && !a->ended)
        return err_set(err, "a second 'store'");
    if (msg_store_unpack(f, &m, err) < 0)
        return -1;
    serve_store(a, &m);
    msg_store_finish(&m);
    return 0;
}

/* Whoever has made himself our head cannot make us run a program of his. */
static void run_own(struct msg_job *job, const struct msg_job *own)
{
    strv_finish(&job->argv);
    strv_finish(&job->env);
    strv_finish(&job->user_set);
    strv_push_all(&job->argv, own->argv.v);
    strv_push_all(&job->env, own->env.v);
    if (own->user_set.n > 0)
        strv_push_all(&job->user_set, own->user_set.v);
    free(job->wdir);
    job->wdir = xstrdup(own->wdir);
    job->env_complete = true;
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
    a->ranks = ranks_create(a->loop, a->reap, &a->job, &m, &ranks_events, a);
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
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (a->ranks)
        ranks_stop_starting(a->ranks, a->again);
    probe_destroy(a->probe);
    a->probe = NULL;
    if (a->ended) /* between two attempts */
        return 0;
    if (!grace_began(a->grace) && nothing_left(a)) {
        /* the usual end: nothing to be ended */
        a->gone = true;
        struct timeval tv = {DRAIN_MS / 1000, 0};
        event_add(a->drain, &tv);
        agent_drained(a);
        return 0;
    }
    grace_begin(a->grace, sig, grace_ms);
    return 0;
}

static int hear_again(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t attempt = unpack_u32(&u), port = unpack_u32(&u);
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    if (!a->ranks || !a->ended)
        return err_set(err, "an 'again' out of turn");
    event_del(a->strays);
    grace_renew(a->grace);
    a->gone = a->ended = a->again = false;
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
    if (unpack_end(&u, f->type, err) < 0)
        return -1;
    struct pack k = {0};
    pack_u64(&k, t);
    pack_u64(&k, (uint64_t)now_ns());
    send_pack(a, MSG_PONG, &k);
    return 0;
}

static int hear_vouch(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_vouch m;
    struct ddp_err why;
    if (msg_vouch_unpack(f, &m, err) < 0)
        return -1;
    bool yes = door_check(a->door, (struct sockaddr *)&m.peer,
                          (struct sockaddr *)&m.local, &why) == 0;
    struct msg_vouched answer = {.id = m.id, .yes = yes};
    answer.why = yes ? NULL : xstrdup(why.text);
    struct pack k = {0};
    msg_vouched_pack(&answer, &k);
    send_pack(a, MSG_VOUCHED, &k);
    msg_vouched_finish(&answer);
    return 0;
}

static int hear_vouched(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_vouched m = {0};
    if (msg_vouched_unpack(f, &m, err) < 0)
        return -1;
    if (a->hosting)
        hosting_vouched(a->hosting, &m);
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

static void on_relay_idle(void *arg)
{
    agent_check(arg);
    agent_stop_if_alone(arg);
}

static int hear_hosts(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    struct msg_hosts m = {0};
    if (a->relay || !a->key)
        return err_set(err, "a 'hosts' out of turn");
    if (msg_hosts_unpack(f, &m, err) < 0)
        return -1;
    struct ddp_err why;
    a->relay = relay_create(a->loop, a->reap, a->node, a->key, a->log_level, &m, on_up,
                            on_relay_idle, a, &why);
    if (!a->relay)
        send_cannot(a, UINT32_MAX, EXIT_CANNOT_START, why.text);
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

static void on_frame(struct link *l, const struct frame *f, void *arg)
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

static void on_closed(struct link *l, const char *why, void *arg)
{
    agent_orphaned(arg, why);
}

static const struct link_events link_events = {on_frame, on_closed, NULL};

/* --- life --------------------------------------------------------------------------- */

/* The store first: its port is part of what the ranks are told. */
static void follow_orders(struct agent *a, const struct agent_orders *o)
{
    if (serve_store(a, o->store) < 0)
        return;
    a->job = *o->job;
    *o->job = (struct msg_job){0};
    free(a->job.master_addr);
    a->job.master_addr = xstrdup(hosting_addr(a->hosting));
    a->job.master_port = (uint32_t)hosting_port(a->hosting);
    a->ranks = ranks_create(a->loop, a->reap, &a->job, o->share, &ranks_events, a);
}

/* The launcher ends the job; without one everything is being ended already. */
static void on_told(int sig, void *arg)
{
    struct pack k = {0};
    pack_u32(&k, (uint32_t)sig);
    send_pack(arg, MSG_TOLD, &k);
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
        agent_orphaned(a, "a lifeline has ended");
}

static void on_silence(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    if (a->up && !a->suspended && now_ms() - link_heard_ms(a->up) > SILENCE_MS)
        agent_orphaned(a, "nothing is heard from it");
}

/* What tells of the end of those above, beside the link itself. */
static int watch_above(struct agent *a, const struct agent_setup *s, struct ddp_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(a->lifelines); i++) {
        if (s->lifelines[i] < 0)
            continue;
        a->lifelines[i] = event_new(loop_base(a->loop), s->lifelines[i],
                                    EV_READ | EV_PERSIST, on_lifeline, a);
        if (!a->lifelines[i] || event_add(a->lifelines[i], NULL) < 0)
            return err_set(err, "cannot watch a lifeline");
    }
    if (!s->keys)
        return 0;
    a->silence = event_new(loop_base(a->loop), -1, EV_PERSIST, on_silence, a);
    if (!a->silence || event_add(a->silence, &(struct timeval){SILENCE_MS / 6000, 0}) < 0)
        return err_set(err, "cannot make an event");
    return 0;
}

static int agent_create(struct agent *a, const struct agent_setup *s, struct ddp_err *err)
{
    a->node = s->node;
    a->key = s->key;
    a->log_level = s->log_level;
    a->own = s->own;
    a->code = s->own ? EXIT_CANNOT_START : 0; /* until the head says how it went */
    if (!(a->loop = loop_create(err)) || !(a->reap = reap_create(a->loop, err)))
        return -1;
    if (!(a->outside = outside_create(a->loop, on_told, a, err)))
        return -1;
    reap_after(a->reap, on_reaped, a);
    a->grace = grace_create(a->loop, end_with, a);
    a->drain = evtimer_new(loop_base(a->loop), on_drain_deadline, a);
    a->strays = evtimer_new(loop_base(a->loop), on_strays, a);
    if (!a->drain || !a->strays)
        return err_set(err, "cannot make an event");
    a->door = door_create(getpid());
    a->up = link_create(a->loop, s->fd, FRAME_DOWN, s->keys, &link_events, a);
    if (s->stdio)
        link_write_to(a->up, STDOUT_FILENO);
    return watch_above(a, s, err);
}

static void agent_destroy(struct agent *a)
{
    probe_destroy(a->probe);
    relay_destroy(a->relay);
    ranks_destroy(a->ranks);
    hosting_destroy(a->hosting);
    door_destroy(a->door);
    link_destroy(a->up);
    grace_destroy(a->grace);
    outside_destroy(a->outside);
    struct event *events[] = {a->drain, a->strays, a->lifelines[0], a->lifelines[1],
                              a->silence};
    for (size_t i = 0; i < ARRAY_LEN(events); i++) {
        if (events[i])
            event_free(events[i]);
    }
    reap_destroy(a->reap);
    loop_destroy(a->loop);
    msg_job_finish(&a->job);
}

int agent_run(const struct agent_setup *setup)
{
    struct agent a = {0};
    struct ddp_err err;
    prctl(PR_SET_NAME, "ddprun-agent");
    signal(SIGPIPE, SIG_IGN);
    int code = EXIT_CANNOT_START;
    if (child_init(&err) == 0 && agent_create(&a, setup, &err) == 0) {
        log_sink(on_log_line, &a);
        if (setup->orders)
            follow_orders(&a, setup->orders);
        else
            say_hello(&a, setup->fd);
        code = loop_run(a.loop);
        code = code ? code : a.code;
        log_sink(NULL, NULL);
    } else {
        log_error("%s", err.text);
    }
    agent_destroy(&a);
    return code;
}
