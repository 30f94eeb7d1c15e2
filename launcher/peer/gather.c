/* launcher/peer/gather.c - see gather.h
 *
 * An entry is one connection: authenticated, then joined once its request has arrived.
 * All have joined when the instances on their machines add up to the size given by the
 * outer launcher; the number of machines need not be known.
 */
#define LOG_SUBSYS "peers"
#include "launcher/peer/gather.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/hostset.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"
#include "common/sock.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"
#include "launcher/job/signals.h"
#include "launcher/transport/accept.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    struct gather *gather; /* borrowed: owner of the list */
    unsigned rank;         /* the lowest on its machine */
    int fd;                /* owned; -1: the head itself */
    struct link_keys keys;
    char *here;             /* owned */
    struct event *readable; /* owned */
    unsigned char bytes[JOIN_SIZE];
    size_t have;
    bool joined;
    struct msg_join request;
};

struct gather {
    const struct opts *opts;       /* borrowed */
    const struct ambient_job *job; /* borrowed */
    struct loop *loop;             /* owned */
    struct acceptor *acceptor;     /* owned */
    struct signals *signals;       /* owned */
    struct hostset *allowed;       /* owned; NULL: any host with the key */
    struct event *deadline;        /* owned */
    struct entry **list;           /* owned, and what it points to */
    size_t n;
    int copies; /* instances joined so far */
    struct ddp_err why;
};

static void entry_free(struct entry *e)
{
    loop_close_fd(&e->readable, &e->fd);
    msg_join_finish(&e->request);
    secret_wipe(&e->keys, sizeof e->keys);
    free(e->here);
    free(e);
}

static void drop(struct gather *a, struct entry *e)
{
    size_t i = 0;
    while (a->list[i] != e)
        i++;
    if (e->joined)
        a->copies -= (int)e->request.copies;
    a->list[i] = a->list[--a->n];
    entry_free(e);
}

static struct entry *add(struct gather *a, unsigned rank)
{
    struct entry *e = xcalloc(1, sizeof *e);
    *e = (struct entry){.gather = a, .rank = rank, .fd = -1};
    a->list = xrealloc(a->list, a->n + 1, sizeof *a->list);
    a->list[a->n++] = e;
    return e;
}

/* 1 KiB fits an empty send buffer; a short write means a dead connection. */
static void send_reply(struct entry *e, const struct msg_joined *reply)
{
    unsigned char out[JOIN_SIZE];
    join_message_seal(MSG_JOINED, reply, &e->keys.out, out);
    if (write(e->fd, out, sizeof out) != (ssize_t)sizeof out)
        log_debug("rank %u did not receive its reply", e->rank);
}

static void send_refusal(struct entry *e, const char *why)
{
    struct msg_joined no = {.code = EXIT_CANNOT_START, .why = xasprintf("%.600s", why)};
    send_reply(e, &no);
    free(no.why);
}

/* --- connections -------------------------------------------------------------------- */

static struct entry *find_joined(const struct gather *a, unsigned rank)
{
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->rank == rank && a->list[i]->joined)
            return a->list[i];
    }
    return NULL;
}

static void on_request(struct entry *e)
{
    struct gather *a = e->gather;
    struct ddp_err err;
    const struct entry *other = find_joined(a, e->rank);
    if (join_message_open(MSG_JOIN, e->bytes, &e->keys.in, &e->request, &err) < 0) {
        log_warn("rejected a peer: %s", err.text);
        drop(a, e);
        return;
    }
    if (other || a->copies + (int)e->request.copies > a->job->size) {
        char *why =
            other ? xasprintf("%s %u joined twice: from %s and from %s",
                              a->job->by_hand ? "--node-rank" : "rank", e->rank,
                              other->request.host, e->request.host)
                  : xasprintf("%s has %u instances of ddprun, more than %s=%d allows",
                              e->request.host, e->request.copies, a->job->size_var,
                              a->job->size);
        log_warn("%s", why);
        send_refusal(e, why);
        free(why);
        drop(a, e);
        return;
    }
    e->joined = true;
    a->copies += (int)e->request.copies;
    log_info("%s joined: %d of %d", e->request.host, a->copies, a->job->size);
    if (a->copies == a->job->size)
        loop_stop(a->loop, 0);
}

/* Reads the join request. After it a peer sends nothing until it has a reply: more bytes
 * or EOF end the entry. */
static void entry_read(struct entry *e)
{
    unsigned char extra;
    ssize_t n = e->joined ? read(e->fd, &extra, 1)
                          : read(e->fd, e->bytes + e->have, sizeof e->bytes - e->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || e->joined) {
        log_info("%s disconnected", e->joined ? e->request.host : "a peer");
        drop(e->gather, e);
        return;
    }
    e->have += (size_t)n;
    if (e->have == sizeof e->bytes)
        on_request(e);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    entry_read(arg);
}

/* Limit the authenticated connections of one rank without a request: with a public key
 * they may be strangers. */
static void limit_pending(struct gather *a, unsigned rank)
{
    enum { PENDING_MAX = 4 };
    struct entry *pending = NULL;
    int n = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->rank != rank || a->list[i]->joined)
            continue;
        n++;
        pending = pending ? pending : a->list[i];
    }
    if (n >= PENDING_MAX)
        drop(a, pending);
}

static bool on_accepted(unsigned rank, int fd, const struct link_keys *keys,
                        const char *here, void *arg)
{
    struct gather *a = arg;
    if (rank == 0 || rank >= (unsigned)a->job->size)
        return false;
    limit_pending(a, rank);
    struct entry *e = add(a, rank);
    e->fd = fd;
    e->keys = *keys;
    e->here = xstrdup(here);
    e->readable = event_new(loop_base(a->loop), fd, EV_READ | EV_PERSIST, on_readable, e);
    if (!e->readable || event_add(e->readable, NULL) < 0)
        abort(); /* as mem.h does when memory is gone */
    return true;
}

static bool is_allowed(const struct sockaddr *from, void *arg)
{
    const struct gather *a = arg;
    return hostset_has(a->allowed, from);
}

/* --- report of missing peers -------------------------------------------------------- */

static char *missing_ranks(const struct gather *a)
{
    struct strv names = {0};
    for (int r = 0; r < a->job->size; r++) {
        if (find_joined(a, (unsigned)r))
            continue;
        if ((size_t)r < a->job->hosts.n)
            strv_push(&names, a->job->hosts.v[r]);
        else
            strv_pushf(&names, "%s %d", a->job->by_hand ? "--node-rank" : "rank", r);
    }
    char *text = xstrdup("");
    for (size_t i = 0; i < names.n && i < 8; i++) {
        char *longer = xasprintf("%s%s%s", text, i ? ", " : "", names.v[i]);
        free(text);
        text = longer;
    }
    if (names.n > 8) {
        char *longer = xasprintf("%s and %zu more", text, names.n - 8);
        free(text);
        text = longer;
    }
    strv_finish(&names);
    return text;
}

/* If machines have several instances, only the joined hosts are known. */
static char *joined_hosts(const struct gather *a)
{
    char *text = xstrdup("");
    for (size_t i = 0; i < a->n; i++) {
        const struct entry *e = a->list[i];
        if (!e->joined)
            continue;
        char *longer = xasprintf("%s%s%s (%u)", text, *text ? ", " : "", e->request.host,
                                 e->request.copies);
        free(text);
        text = longer;
    }
    return text;
}

static bool one_copy_each(const struct gather *a)
{
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->joined && a->list[i]->request.copies > 1)
            return false;
    }
    return true;
}

static void report_missing(struct gather *a)
{
    const struct ambient_job *o = a->job;
    bool single = one_copy_each(a);
    char *who = single ? missing_ranks(a) : joined_hosts(a);
    err_set(&a->why,
            "only %d of %d instances of ddprun (%s) joined within %.4g s; %s: %s; "
            "--start-timeout waits longer",
            a->copies, o->size, o->size_var, (double)a->opts->start_timeout_ms / 1e3,
            single ? "missing" : "joined", who);
    free(who);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct gather *a = arg;
    report_missing(a);
    loop_stop(a->loop, EXIT_CANNOT_START);
}

/* --- signals while waiting ---------------------------------------------------------- */

static void on_end_signal(int sig, void *arg)
{
    struct gather *a = arg;
    char *who = one_copy_each(a) ? missing_ranks(a) : joined_hosts(a);
    err_set(&a->why, "interrupted (%s) while %s: %s", signal_name(sig),
            one_copy_each(a) ? "these were missing" : "only these had joined", who);
    free(who);
    loop_stop(a->loop, 128 + sig);
}

static void on_other_signal(int sig, void *arg) {}

static void on_stop(void *arg) {}

static const struct signals_events signals_events = {on_end_signal, on_other_signal,
                                                     on_stop, on_stop};

/* --- gather ------------------------------------------------------------------------- */

/* The hosts that may join when the key is public: those that the outer launcher names, or
 * those of -H; NULL with `err` when neither does. */
static struct hostset *allowed_hosts(const struct opts *opts, const struct ambient_job *o,
                                     struct ddp_err *err)
{
    if (o->hosts.n > 0)
        return hostset_create(&o->hosts);
    struct alloc a = {0};
    struct strv names = {0};
    if (!opts->hosts)
        err_set(err, "--peer-key none needs -H: only the hosts it names may join");
    else if (alloc_hosts_arg.read(opts, &a, err) == 0) {
        for (size_t i = 0; i < a.nnodes; i++)
            strv_push(&names, a.nodes[i].name);
    }
    struct hostset *set = names.n > 0 ? hostset_create(&names) : NULL;
    strv_finish(&names);
    alloc_clear(&a);
    return set;
}

static int listen_for_peers(struct gather *a, struct peer_key *k, struct ddp_err *err)
{
    int port = a->opts->master_port ? a->opts->master_port : PEER_PORT;
    if (k->meeting_file && !a->job->by_hand)
        port = 0; /* the meeting file has it */
    if (!(a->loop = loop_create(err)) ||
        !(a->signals = signals_create(a->loop, &signals_events, a, err)))
        return -1;
    if (k->open && !(a->allowed = allowed_hosts(a->opts, a->job, err)))
        return -1;
    const struct acceptor_options options = {.expected = (size_t)a->job->size,
                                             .port = port,
                                             .allowed = a->allowed ? is_allowed : NULL};
    a->acceptor = acceptor_create(a->loop, &k->key, &options, on_accepted, a, err);
    if (!a->acceptor)
        return err_prefix(err, "cannot listen for peers; choose another port with "
                               "--master-port on all of them");
    a->deadline = evtimer_new(loop_base(a->loop), on_deadline, a);
    if (!a->deadline)
        return err_set(err, "cannot make an event");
    int64_t ms = a->opts->start_timeout_ms;
    event_add(a->deadline, &(struct timeval){ms / 1000, ms % 1000 * 1000});
    return 0;
}

/* The address of --interface comes first. */
static int write_meeting_file(struct gather *a, struct peer_key *k, struct ddp_err *err)
{
    char addr[64], name[] = "head";
    struct bootstrap s = {.key = k->key, .name = name};
    struct strv calls = {0};
    acceptor_addresses(a->acceptor, &calls);
    int rc = 0;
    if (a->opts->interface) {
        int port;
        rc = sock_interface_addr(a->opts->interface, addr, sizeof addr, err);
        if (rc == 0 && sscanf(calls.v[0], "%*s %d", &port) == 1)
            strv_pushf(&s.calls, "%s %d", addr, port);
    }
    if (rc == 0) {
        strv_push_all(&s.calls, calls.v);
        rc = meeting_file_write(k->meeting_file, &s, err);
    }
    log_info("peers find this head through '%s'", meeting_file_path(k->meeting_file));
    strv_finish(&calls);
    strv_finish(&s.calls);
    secret_wipe(&s.key, sizeof s.key);
    return rc;
}

static int by_rank(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;
    return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

static void add_node(const struct gather *a, const struct entry *e, struct peers *p)
{
    const struct ambient_job *o = a->job;
    const char *name = e->rank < o->hosts.n ? o->hosts.v[e->rank] : e->request.host;
    struct alloc_node *node = alloc_add(p->alloc, name);
    node->local = e->fd < 0;
    if ((size_t)o->size > a->n) {
        char *from = xasprintf("%s has started %u there", o->by, e->request.copies);
        sched_slots(node, (int)e->request.copies, from);
        free(from);
    } else if (e->request.slots > 0) {
        sched_slots(node, (int)e->request.slots, e->request.slots_from);
    }
}

/* Send each peer its node number and pass its connection to the job. Drops connections
 * without a join request. */
static void hand_over(struct gather *a, struct peers *p)
{
    for (size_t i = a->n; i-- > 0;) {
        if (!a->list[i]->joined)
            drop(a, a->list[i]);
    }
    qsort(a->list, a->n, sizeof *a->list, by_rank);
    p->alloc = xcalloc(1, sizeof *p->alloc);
    p->alloc->source = a->job->by;
    p->n = a->n;
    p->list = xcalloc(a->n, sizeof *p->list);
    for (size_t i = 0; i < a->n; i++) {
        struct entry *e = a->list[i];
        struct msg_joined yes = {.node = (uint32_t)i, .nnodes = (uint32_t)a->n};
        if (e->fd >= 0)
            send_reply(e, &yes);
        add_node(a, e, p);
        p->list[i] = (struct peer){.fd = e->fd, .keys = e->keys, .here = e->here};
        e->fd = -1;
        e->here = NULL;
    }
}

static void refuse_all(struct gather *a)
{
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->fd >= 0 && a->list[i]->joined)
            send_refusal(a->list[i], a->why.text);
    }
}

static void finish(struct gather *a)
{
    for (size_t i = 0; i < a->n; i++)
        entry_free(a->list[i]);
    free(a->list);
    acceptor_destroy(a->acceptor);
    hostset_destroy(a->allowed);
    if (a->deadline)
        event_free(a->deadline);
    signals_destroy(a->signals);
    loop_destroy(a->loop);
}

int gather_peers(const struct opts *opts, const struct ambient_job *o, struct peer_key *k,
                 const struct msg_join *own, struct peers *peers, struct ddp_err *err)
{
    struct gather a = {.opts = opts, .job = o};
    int code = 0;
    struct entry *self = add(&a, 0);
    self->joined = true;
    self->request = *own;
    self->request.host = xstrdup(own->host);
    self->request.slots_from = xstrdup(own->slots_from);
    a.copies = (int)own->copies;
    if (a.copies < o->size) {
        if (listen_for_peers(&a, k, &a.why) < 0 ||
            (k->meeting_file && write_meeting_file(&a, k, &a.why) < 0))
            code = EXIT_CANNOT_START;
        else
            code = loop_run(a.loop);
    }
    if (code == 0)
        hand_over(&a, peers);
    else
        refuse_all(&a);
    *err = a.why;
    finish(&a);
    return code;
}
