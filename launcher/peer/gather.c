/* launcher/peer/gather.c - see gather.h
 *
 * All have joined when the instances on their machines add up to the size given by the
 * outer launcher; the number of machines need not be known. With --nnodes MIN:MAX it goes
 * on when MIN have joined, LAST_CALL_S after the last of them.
 */
#define LOG_SUBSYS "peers"
#include "launcher/peer/gather.h"

#include "common/err.h"
#include "common/limit.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"
#include "launcher/alloc/sched.h"
#include "launcher/job/signals.h"
#include "launcher/peer/listener.h"
#include "launcher/transport/program.h"

#include <signal.h>
#include <string.h>

enum { LAST_CALL_S = 3 };

struct gather {
    const struct ambient_job *job; /* borrowed */
    struct peer_listener listener; /* owned; its list has the head, too */
    struct loop *loop;             /* owned */
    struct signals *signals;       /* owned */
    struct limit *deadline;        /* owned */
    struct event *last_call;       /* owned: when it goes on without those missing */
    struct ddp_err why;
};

static char *why_not(const struct gather *a, const struct caller *c, int copies)
{
    const struct ambient_job *o = a->job;
    const struct opts *opts = a->listener.opts;
    const char *name = o->by_hand ? "--node-rank" : "rank";
    const struct caller *other = caller_joined(&a->listener, c->rank, c);
    if (other)
        return xasprintf("%s %u joined twice: from %s and from %s", name, c->rank,
                         other->request.host, c->request.host);
    if (c->request.np && (int)c->request.np != opts->np) {
        OWNED char *ours = opts->np ? xasprintf("-np %d", opts->np) : xstrdup("no -np");
        return xasprintf("%s %u on %s has -np %u, but %s 0 has %s: give all the same, it "
                         "is the number of ranks on all hosts together",
                         name, c->rank, c->request.host, c->request.np, name, ours);
    }
    if (copies > o->size)
        return xasprintf("%s has %u instances of ddprun, more than %s=%d allows",
                         c->request.host, c->request.copies, o->size_var, o->size);
    return NULL;
}

static void check_size(struct gather *a, int copies)
{
    if (copies == a->job->size)
        loop_stop(a->loop, 0);
    else if (copies >= a->job->least)
        loop_arm(a->last_call, LAST_CALL_S * 1000);
}

static void on_join(struct caller *c, void *arg)
{
    struct gather *a = arg;
    int copies = (int)a->listener.copies;
    OWNED char *why = why_not(a, c, copies);
    if (why) {
        log_warn("%s", why);
        caller_refuse(c, why);
        caller_drop(c);
        return;
    }
    log_info("%s joined: %d of %d", c->request.host, copies, a->job->size);
    check_size(a, copies);
}

static void on_last_call(evutil_socket_t fd, short what, void *arg)
{
    struct gather *a = arg;
    if ((int)a->listener.copies >= a->job->least)
        loop_stop(a->loop, 0);
}

/* --- report of missing peers -------------------------------------------------------- */

static char *missing_ranks(const struct gather *a)
{
    SCOPED(strv_finish) struct strv names = {0};
    for (int r = 0; r < a->job->size; r++) {
        if (caller_joined(&a->listener, (unsigned)r, NULL))
            continue;
        if ((size_t)r < a->job->hosts.n)
            strv_push(&names, a->job->hosts.v[r]);
        else
            strv_pushf(&names, "%s %d", a->job->by_hand ? "--node-rank" : "rank", r);
    }
    char *text = xstrdup("");
    for (size_t i = 0; i < names.n && i < 8; i++)
        xappendf(&text, "%s%s", i ? ", " : "", names.v[i]);
    if (names.n > 8)
        xappendf(&text, " and %zu more", names.n - 8);
    return text;
}

/* If machines have several instances, only the joined hosts are known. */
static char *joined_hosts(const struct gather *a)
{
    char *text = xstrdup("");
    for (int r = 0; r < a->job->size; r++) {
        const struct caller *c = caller_joined(&a->listener, (unsigned)r, NULL);
        if (c)
            xappendf(&text, "%s%s (%u)", *text ? ", " : "", c->request.host,
                     c->request.copies);
    }
    return text;
}

static bool one_copy_each(const struct gather *a)
{
    return a->listener.copies == a->listener.njoined;
}

static void report_missing(struct gather *a)
{
    const struct ambient_job *o = a->job;
    bool single = one_copy_each(a);
    OWNED char *who = single ? missing_ranks(a) : joined_hosts(a);
    err_set(&a->why,
            "only %d of %d instances of ddprun (%s) joined within %.4g s; %s: %s; "
            "--start-timeout waits longer",
            (int)a->listener.copies, o->least, o->size_var,
            (double)a->listener.opts->start_timeout_ms / 1e3,
            single ? "missing" : "joined", who);
}

static void on_deadline(void *arg)
{
    struct gather *a = arg;
    if ((int)a->listener.copies >= a->job->least) {
        loop_stop(a->loop, 0);
        return;
    }
    report_missing(a);
    loop_stop(a->loop, EXIT_CANNOT_START);
}

/* --- signals while waiting ---------------------------------------------------------- */

static void on_end_signal(int sig, void *arg)
{
    struct gather *a = arg;
    OWNED char *who = one_copy_each(a) ? missing_ranks(a) : joined_hosts(a);
    if (sig == SIGQUIT) { /* asks for a report (doc/hangs.md) */
        log_warn("%s: %s", one_copy_each(a) ? "missing" : "only these have joined", who);
        return;
    }
    err_set(&a->why, "interrupted (%s) while %s: %s", signal_name(sig),
            one_copy_each(a) ? "these were missing" : "only these had joined", who);
    loop_stop(a->loop, 128 + sig);
}

static void on_other_signal(int sig, void *arg)
{
    if (sig != SIGWINCH && sig != SIGURG) /* these may come at any time */
        log_warn("%s was not passed on: no rank has been started", signal_name(sig));
}

static void on_stop(void *arg) {}

static const struct signals_events signals_events = {on_end_signal, on_other_signal,
                                                     on_stop, on_stop};

/* --- gather ------------------------------------------------------------------------- */

static int listen_for_peers(struct gather *a, const struct peer_key *k,
                            struct ddp_err *err)
{
    if (!(a->loop = loop_create(err)) ||
        !(a->signals = signals_create(a->loop, &signals_events, a, err)))
        return -1;
    a->listener.loop = a->loop;
    a->deadline = limit_create(a->loop, on_deadline, a);
    a->last_call = loop_timer(a->loop, on_last_call, a);
    limit_arm(a->deadline, a->listener.opts->start_timeout_ms);
    return peer_listener_open(&a->listener, k, err);
}

static void add_node(const struct gather *a, const struct caller *c, struct peers *p)
{
    const struct ambient_job *o = a->job;
    const char *name = c->rank < o->hosts.n ? o->hosts.v[c->rank] : c->request.host;
    struct alloc_node *node = alloc_add(p->alloc, name);
    node->local = c->fd < 0;
    node->per_node = (int)c->request.per_node;
    if (!o->by_hand && (unsigned)o->size > a->listener.njoined) {
        alloc_set_slots(node, (int)c->request.copies, SLOTS_GIVEN,
                        "%s has started %u there", o->by, c->request.copies);
    } else if (c->request.slots > 0) {
        alloc_set_slots(node, (int)c->request.slots, SLOTS_GIVEN, "%s",
                        c->request.slots_from);
    }
}

/* Send each peer its node number and pass its connection to the job. */
static void hand_over(struct gather *a, struct peers *p)
{
    struct peer_listener *l = &a->listener;
    p->alloc = xcalloc(1, sizeof *p->alloc);
    p->alloc->source = l->job->by;
    p->alloc->slots_hint = "--nproc-per-node N";
    p->alloc->changes = l->job->least < l->job->size;
    p->list = xcalloc(l->njoined, sizeof *p->list);
    for (int r = 0; r < l->job->size; r++) {
        struct caller *c = caller_joined(l, (unsigned)r, NULL);
        if (!c)
            continue;
        add_node(a, c, p);
        int fd = caller_admit(c, (unsigned)p->n, l->njoined);
        p->list[p->n++] = (struct peer){.fd = fd, .keys = c->keys, .here = c->here};
        c->here = NULL;
    }
}

static void refuse_all(struct gather *a)
{
    for (int r = 0; r < a->job->size; r++) {
        struct caller *c = caller_joined(&a->listener, (unsigned)r, NULL);
        if (c && c->fd >= 0)
            caller_refuse(c, a->why.text);
    }
}

static void finish(struct gather *a)
{
    peer_listener_close(&a->listener);
    limit_destroy(a->deadline);
    loop_free(a->last_call);
    signals_destroy(a->signals);
    loop_destroy(a->loop);
}

int gather_peers(const struct opts *opts, const struct ambient_job *o,
                 const struct peer_key *k, const struct msg_join *own,
                 struct peers *peers, struct ddp_err *err)
{
    struct gather a = {.job = o,
                       .listener = {.opts = opts, .job = o, .on_join = on_join}};
    int code = 0;
    struct caller *self = caller_add(&a.listener, 0);
    a.listener.arg = &a;
    self->request = *own;
    self->request.host = xstrdup(own->host);
    self->request.slots_from = xstrdup(own->slots_from);
    caller_count(self);
    if ((int)own->copies < o->size) {
        code = EXIT_CANNOT_START;
        if (listen_for_peers(&a, k, &a.why) == 0) {
            check_size(&a, (int)own->copies);
            code = loop_run(a.loop);
        }
    }
    if (code == 0)
        hand_over(&a, peers);
    else
        refuse_all(&a);
    *err = a.why;
    finish(&a);
    return code;
}
