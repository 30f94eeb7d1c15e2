/* launcher/peer/gather.c - see gather.h
 *
 * Somebody who has come is one entry: connected, then heard. Complete is when the copies
 * on all machines make up the number that the starter has told; how many machines that
 * are need not be known before.
 */
#define LOG_SUBSYS "peers"
#include "launcher/peer/gather.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"
#include "common/sock.h"
#include "launcher/alloc/sched.h"
#include "launcher/job/signals.h"
#include "launcher/peer/allow_list.h"
#include "launcher/spawn/accept.h"
#include "launcher/spawn/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
    struct assembly *assembly; /* borrowed: whose list it is on */
    unsigned rank;             /* the lowest on its machine */
    int fd;                    /* owned; -1: ourselves */
    struct link_keys keys;
    char *here;             /* owned */
    struct event *readable; /* owned */
    unsigned char bytes[JOIN_SIZE];
    size_t have;
    bool heard;
    struct join_request note;
};

struct assembly {
    const struct opts *opts;         /* borrowed */
    const struct ambient_job *outer; /* borrowed */
    struct loop *loop;               /* owned */
    struct acceptor *acceptor;       /* owned */
    struct signals *signals;         /* owned */
    struct hostset *known;           /* owned; NULL: everybody who knows the key */
    struct event *deadline;          /* owned */
    struct entry **list;             /* owned, and what it points to */
    size_t n;
    int copies; /* heard of so far */
    struct ddp_err why;
};

static void entry_free(struct entry *e)
{
    if (e->readable)
        event_free(e->readable);
    if (e->fd >= 0)
        close(e->fd);
    join_request_finish(&e->note);
    secret_wipe(&e->keys, sizeof e->keys);
    free(e->here);
    free(e);
}

static void drop(struct assembly *a, struct entry *e)
{
    size_t i = 0;
    while (a->list[i] != e)
        i++;
    if (e->heard)
        a->copies -= (int)e->note.copies;
    a->list[i] = a->list[--a->n];
    entry_free(e);
}

static struct entry *add(struct assembly *a, unsigned rank)
{
    struct entry *e = xcalloc(1, sizeof *e);
    *e = (struct entry){.assembly = a, .rank = rank, .fd = -1};
    a->list = xrealloc(a->list, a->n + 1, sizeof *a->list);
    a->list[a->n++] = e;
    return e;
}

/* 1 KiB into an empty buffer: it fits, or the connection is dead. */
static void answer(struct entry *e, const struct join_reply *answer)
{
    unsigned char out[JOIN_SIZE];
    join_reply_seal(answer, &e->keys.out, out);
    if (write(e->fd, out, sizeof out) != (ssize_t)sizeof out)
        log_debug("rank %u does not take its answer", e->rank);
}

static void send_away(struct entry *e, const char *why)
{
    struct join_reply no = {.code = EXIT_CANNOT_START, .why = xstrdup(why)};
    answer(e, &no);
    free(no.why);
}

/* --- who comes ---------------------------------------------------------------------- */

static struct entry *heard_of(const struct assembly *a, unsigned rank)
{
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->rank == rank && a->list[i]->heard)
            return a->list[i];
    }
    return NULL;
}

static void hear(struct entry *e)
{
    struct assembly *a = e->assembly;
    struct ddp_err err;
    const struct entry *other = heard_of(a, e->rank);
    if (join_request_open(e->bytes, &e->keys.in, &e->note, &err) < 0) {
        log_warn("a peer is sent away: %s", err.text);
        drop(a, e);
        return;
    }
    if (other || a->copies + (int)e->note.copies > a->outer->size) {
        char *why =
            other ? xasprintf("%s %u is here twice: on %s and on %s",
                              a->outer->by_hand ? "--node-rank" : "rank", e->rank,
                              other->note.host, e->note.host)
                  : xasprintf("%s has %u copies of ddprun, more than %s=%d leaves over",
                              e->note.host, e->note.copies, a->outer->size_var,
                              a->outer->size);
        log_warn("%s", why);
        send_away(e, why);
        free(why);
        drop(a, e);
        return;
    }
    e->heard = true;
    a->copies += (int)e->note.copies;
    log_info("%s has come: %d of %d", e->note.host, a->copies, a->outer->size);
    if (a->copies == a->outer->size)
        loop_stop(a->loop, 0);
}

/* Its note, and after that nothing before it is answered: more, or an end, is the end. */
static void entry_read(struct entry *e)
{
    unsigned char extra;
    ssize_t n = e->heard ? read(e->fd, &extra, 1)
                         : read(e->fd, e->bytes + e->have, sizeof e->bytes - e->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || e->heard) {
        log_info("%s has gone again", e->heard ? e->note.host : "a peer");
        drop(e->assembly, e);
        return;
    }
    e->have += (size_t)n;
    if (e->have == sizeof e->bytes)
        hear(e);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    entry_read(arg);
}

/* Of those who have proved to be `rank` and said nothing yet, a few may wait; strangers
 * can be among them where the key is public. */
static void make_room(struct assembly *a, unsigned rank)
{
    enum { SILENT_MAX = 4 };
    struct entry *silent = NULL;
    int n = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->rank != rank || a->list[i]->heard)
            continue;
        n++;
        silent = silent ? silent : a->list[i];
    }
    if (n >= SILENT_MAX)
        drop(a, silent);
}

static bool on_accepted(unsigned rank, int fd, const struct link_keys *keys,
                        const char *here, void *arg)
{
    struct assembly *a = arg;
    if (rank == 0 || rank >= (unsigned)a->outer->size)
        return false;
    make_room(a, rank);
    struct entry *e = add(a, rank);
    e->fd = fd;
    e->keys = *keys;
    e->here = xstrdup(here);
    e->readable = event_new(loop_base(a->loop), fd, EV_READ | EV_PERSIST, on_readable, e);
    if (!e->readable || event_add(e->readable, NULL) < 0)
        abort(); /* as mem.h does when memory is gone */
    return true;
}

static bool is_known(const struct sockaddr *from, void *arg)
{
    const struct assembly *a = arg;
    return hostset_has(a->known, from);
}

/* --- who has not come --------------------------------------------------------------- */

static char *missing_ranks(const struct assembly *a)
{
    struct strv names = {0};
    for (int r = 0; r < a->outer->size; r++) {
        if (heard_of(a, (unsigned)r))
            continue;
        if ((size_t)r < a->outer->hosts.n)
            strv_push(&names, a->outer->hosts.v[r]);
        else
            strv_pushf(&names, "%s %d", a->outer->by_hand ? "--node-rank" : "rank", r);
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

/* Of machines with several copies only those that have come are known. */
static char *those_here(const struct assembly *a)
{
    char *text = xstrdup("");
    for (size_t i = 0; i < a->n; i++) {
        const struct entry *e = a->list[i];
        if (!e->heard)
            continue;
        char *longer = xasprintf("%s%s%s (%u)", text, *text ? ", " : "", e->note.host,
                                 e->note.copies);
        free(text);
        text = longer;
    }
    return text;
}

static bool one_each(const struct assembly *a)
{
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->heard && a->list[i]->note.copies > 1)
            return false;
    }
    return true;
}

static void tell_missing(struct assembly *a)
{
    const struct ambient_job *o = a->outer;
    bool single = one_each(a);
    char *who = single ? missing_ranks(a) : those_here(a);
    err_set(&a->why,
            "%d of %d copies of ddprun (%s) have come within %.4g s; %s: %s; "
            "--start-timeout waits longer",
            a->copies, o->size, o->size_var, (double)a->opts->start_timeout_ms / 1e3,
            single ? "missing" : "here are", who);
    free(who);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct assembly *a = arg;
    tell_missing(a);
    loop_stop(a->loop, EXIT_CANNOT_START);
}

/* --- a signal while we wait --------------------------------------------------------- */

static void on_end_signal(int sig, void *arg)
{
    struct assembly *a = arg;
    char *who = one_each(a) ? missing_ranks(a) : those_here(a);
    err_set(&a->why, "interrupted (%s) while %s: %s", signal_name(sig),
            one_each(a) ? "these were missing" : "only these were here", who);
    free(who);
    loop_stop(a->loop, 128 + sig);
}

static void on_other_signal(int sig, void *arg) {}

static void on_stop(void *arg) {}

static const struct signals_events signals_events = {on_end_signal, on_other_signal,
                                                     on_stop, on_stop};

/* --- the whole ---------------------------------------------------------------------- */

static int listen_for_peers(struct assembly *a, struct peer_key *k, struct ddp_err *err)
{
    int port = a->opts->master_port ? a->opts->master_port : PEER_PORT;
    if (k->card && !a->outer->by_hand)
        port = 0; /* the card tells it */
    if (!(a->loop = loop_create(err)) ||
        !(a->signals = signals_create(a->loop, &signals_events, a, err)))
        return -1;
    if (k->open && !(a->known = allow_list_hosts(a->opts, a->outer, err)))
        return -1;
    const struct acceptor_options options = {.expected = (size_t)a->outer->size,
                                             .port = port,
                                             .knows = a->known ? is_known : NULL};
    a->acceptor = acceptor_create(a->loop, &k->key, &options, on_accepted, a, err);
    if (!a->acceptor)
        return err_prefix(err, "peers cannot meet here; --master-port, on all of them, "
                               "names another port");
    a->deadline = evtimer_new(loop_base(a->loop), on_deadline, a);
    if (!a->deadline)
        return err_set(err, "cannot make an event");
    int64_t ms = a->opts->start_timeout_ms;
    event_add(a->deadline, &(struct timeval){ms / 1000, ms % 1000 * 1000});
    return 0;
}

/* The address that the user means first. */
static int leave_card(struct assembly *a, struct peer_key *k, struct ddp_err *err)
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
        rc = meeting_file_leave(k->card, &s, err);
    }
    log_info("peers find this head by '%s'", meeting_file_path(k->card));
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

static void add_node(const struct assembly *a, const struct entry *e, struct peers *p)
{
    const struct ambient_job *o = a->outer;
    const char *name = e->rank < o->hosts.n ? o->hosts.v[e->rank] : e->note.host;
    struct alloc_node *node = alloc_add(p->alloc, name);
    node->local = e->fd < 0;
    if ((size_t)o->size > a->n) {
        char *from = xasprintf("%s has started %u there", o->by, e->note.copies);
        sched_slots(node, (int)e->note.copies, from);
        free(from);
    } else if (e->note.slots > 0) {
        sched_slots(node, (int)e->note.slots, e->note.slots_from);
    }
}

/* Everybody gets its number, and its connection goes to the job. Who has only proved the
 * key and said nothing is none of them. */
static void hand_over(struct assembly *a, struct peers *p)
{
    for (size_t i = a->n; i-- > 0;) {
        if (!a->list[i]->heard)
            drop(a, a->list[i]);
    }
    qsort(a->list, a->n, sizeof *a->list, by_rank);
    p->alloc = xcalloc(1, sizeof *p->alloc);
    p->alloc->source = a->outer->by;
    p->n = a->n;
    p->list = xcalloc(a->n, sizeof *p->list);
    for (size_t i = 0; i < a->n; i++) {
        struct entry *e = a->list[i];
        struct join_reply yes = {
            .welcome = true, .node = (uint32_t)i, .nnodes = (uint32_t)a->n};
        if (e->fd >= 0)
            answer(e, &yes);
        add_node(a, e, p);
        p->list[i] = (struct peer){.fd = e->fd, .keys = e->keys, .here = e->here};
        e->fd = -1;
        e->here = NULL;
    }
}

static void turn_away(struct assembly *a)
{
    for (size_t i = 0; i < a->n; i++) {
        if (a->list[i]->fd >= 0 && a->list[i]->heard)
            send_away(a->list[i], a->why.text);
    }
}

static void finish(struct assembly *a)
{
    for (size_t i = 0; i < a->n; i++)
        entry_free(a->list[i]);
    free(a->list);
    acceptor_destroy(a->acceptor);
    hostset_destroy(a->known);
    if (a->deadline)
        event_free(a->deadline);
    signals_destroy(a->signals);
    loop_destroy(a->loop);
}

int gather_peers(const struct opts *opts, const struct ambient_job *o, struct peer_key *k,
                 const struct join_request *own, struct peers *peers, struct ddp_err *err)
{
    struct assembly a = {.opts = opts, .outer = o};
    int code = 0;
    struct entry *self = add(&a, 0);
    self->heard = true;
    self->note = *own;
    self->note.host = xstrdup(own->host);
    self->note.slots_from = xstrdup(own->slots_from);
    a.copies = (int)own->copies;
    if (a.copies < o->size) {
        if (listen_for_peers(&a, k, &a.why) < 0 ||
            (k->card && leave_card(&a, k, &a.why) < 0))
            code = EXIT_CANNOT_START;
        else
            code = loop_run(a.loop);
    }
    if (code == 0)
        hand_over(&a, peers);
    else
        turn_away(&a);
    *err = a.why;
    finish(&a);
    return code;
}
