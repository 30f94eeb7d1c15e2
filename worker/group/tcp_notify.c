/* worker/group/tcp_notify.c - what other ranks connect for: a stream, or a short report:
 * why a group broke, how many collectives a rank has entered, what it has called, that it
 * leaves
 *
 * Reports use connections of their own, since the streams may be full or not open, and
 * go to all ranks in parallel. A rank reads them while it waits in a call of the
 * library; one that does not answer is not in such a call.
 */
#include "worker/group/tcp.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/idset.h"
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HELLO_MS = 5000,      /* for an accepted connection to send its hello */
    SILENT_MAX = 128,     /* connections without a hello; accepted at a time */
    FAILURE_MS = 500,     /* for reports of a failure, in all */
    ASK_MS = 500,         /* for answers, in all */
    TURN_MS = 20,         /* between looks for questions of others */
    MOST_CONTACTS = 1024, /* larger groups report to ranks with a stream only */
    REPORTS = 64,         /* calls are reported to so many ranks at a time */
    REPORT_MS = 1         /* for connections to complete */
};

static bool lacks_descriptors(void)
{
    return errno == EMFILE || errno == ENFILE;
}

enum tcp_answer tcp_answers(const struct tcp *n, int rank)
{
    if (layout_is_here(n->layout, rank))
        return TCP_REFUSES;
    SCOPED(close_fd) int fd = tcp_start_connect(&n->layout->members[rank]);
    if (fd < 0)
        return lacks_descriptors() ? TCP_NOT_ASKED : TCP_REFUSES;
    bool answers =
        sock_await(fd, POLLOUT, now_ms() + ASK_MS) == 0 && tcp_error_of(fd) == 0;
    return answers ? TCP_ANSWERS : TCP_REFUSES;
}

/* ---- receiving reports ---- */

/* What follows a hello. */
static const size_t report_bytes[] = {[HELLO_FAILURE] = sizeof(struct failure_report),
                                      [HELLO_CALLS] = sizeof(struct recent_calls),
                                      [HELLO_LEAVE] = sizeof(uint64_t)};

/* 1 when the hello is complete, 0 when more is expected, -1 when the connection must be
 * closed. */
static int read_hello(struct tcp *n, struct accepted *c)
{
    for (;;) {
        size_t want = sizeof c->received.hello;
        if (c->got >= want) {
            if (!tcp_hello_is_sound(n, &c->received.hello))
                return -1;
            want += report_bytes[c->received.hello.what];
        }
        if (c->got == want)
            return 1;
        ssize_t k =
            recv(c->fd, (char *)&c->received + c->got, want - c->got, MSG_DONTWAIT);
        if (k > 0)
            c->got += (size_t)k;
        else if (k < 0 && errno == EINTR)
            continue;
        else if (k < 0 && errno == EAGAIN)
            return now_ms() < c->until_ms ? 0 : -1;
        else
            return -1;
    }
}

/* Polled before accept4(), which allocates a socket before it finds the queue empty;
 * that was a quarter of the time of a small all-reduce. */
static bool listener_ready(const struct tcp *n, int ms)
{
    struct pollfd p = {.fd = n->listener, .events = POLLIN};
    return poll(&p, 1, ms) > 0;
}

static void accept_some(struct tcp *n)
{
    int fd;
    for (int i = 0;
         i < SILENT_MAX && listener_ready(n, 0) &&
         (fd = accept4(n->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;
         i++) {
        struct accepted *c = xcalloc(1, sizeof *c);
        *c = (struct accepted){
            .next = n->accepted, .fd = fd, .until_ms = now_ms() + HELLO_MS};
        atomic_thread_fence(memory_order_release); /* tcp_close_copies(), after a fork */
        n->accepted = c;
    }
}

/* The connection's hello and report are complete. */
static void receive(struct tcp *n, struct accepted *c)
{
    const struct hello *h = &c->received.hello;
    struct peer *from = tcp_peer(n, h->from);
    switch (h->what) {
    case HELLO_FAILURE:
        if (!n->reported)
            n->report = c->received.report;
        n->report.why[sizeof n->report.why - 1] = '\0';
        n->reported = true;
        break;
    case HELLO_ASK:
        (void)!send(c->fd, n->entered, sizeof *n->entered, MSG_NOSIGNAL | MSG_DONTWAIT);
        break;
    case HELLO_CALLS:
        n->nreports += !from->calls;
        from->calls = xrealloc(from->calls, 1, sizeof *from->calls);
        *from->calls = c->received.calls;
        break;
    case HELLO_LEAVE:
        from->left = 1 + c->received.entered;
        break;
    default: /* a stream; if there is one of its kind already, this one is closed */
        if (from->streams[h->what].in >= 0)
            break;
        sock_set_keepalive(c->fd, 5, 2, 5);
        from->streams[h->what].in = c->fd;
        c->fd = -1;
    }
}

bool tcp_failure_reported(struct tcp *n, int *culprit, struct ddp_err *err)
{
    int silent = 0;
    accept_some(n);
    for (struct accepted **at = &n->accepted; *at;) {
        struct accepted *c = *at;
        int rc = read_hello(n, c);
        /* The newest are first. Strangers that keep connecting are not to take all
         * descriptors; a rank whose connection is closed before its hello tries again. */
        if (rc == 0 && ++silent <= SILENT_MAX) {
            at = &c->next;
            continue;
        }
        if (rc > 0)
            receive(n, c);
        *at = c->next;
        close_fd(&c->fd);
        free(c);
    }
    if (n->reported) {
        *culprit = n->report.culprit;
        err_set(err, "%s", n->report.why);
    }
    return n->reported;
}

void tcp_await_connection(const struct tcp *n, int ms)
{
    listener_ready(n, n->accepted ? 1 : ms);
}

/* ---- sending reports ---- */

static bool gets_report(const struct tcp *n, int rank, int culprit, bool to_all)
{
    if (rank == culprit || layout_is_here(n->layout, rank))
        return false;
    return (to_all && n->layout->size <= MOST_CONTACTS) || tcp_any_stream(n->peers[rank]);
}

/* Begin to connect to a rank; false with errno: it cannot be. */
static bool contact(const struct tcp *n, struct contacts *all, int rank)
{
    int fd = tcp_start_connect(&n->layout->members[rank]);
    if (fd < 0)
        return false;
    all->v = xroom(all->v, all->n, &all->room, sizeof *all->v);
    all->v[all->n++] = (struct contact){.rank = rank, .fd = fd};
    return true;
}

static void contacts_close(struct contacts *all)
{
    while (all->n > 0)
        close(all->v[--all->n].fd);
    free(all->v);
    *all = (struct contacts){0};
}

/* Wait until one of them is ready, or the listener if it `listens`; n->polled begins with
 * theirs. */
static bool await_contacts(struct tcp *n, const struct contacts *all, bool listens,
                           int ms)
{
    size_t np = 0;
    for (size_t i = 0; i < all->n; i++)
        tcp_add_polled(n, &np, all->v[i].fd, all->v[i].asked ? POLLIN : POLLOUT);
    tcp_add_polled(n, &np, listens ? n->listener : -1, POLLIN);
    return poll(n->polled, np, ms) > 0;
}

/* Send hello and data; true if the kernel took them. A rank that does not has failed,
 * which tcp_look() finds. */
static bool send_report(const struct tcp *n, const struct contact *c, int what,
                        const void *data, size_t bytes)
{
    struct hello h = tcp_hello(n, c->rank, what);
    struct iovec io[] = {{&h, sizeof h}, {(void *)(uintptr_t)data, bytes}};
    struct msghdr msg = {.msg_iov = io, .msg_iovlen = 2};
    return sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) ==
           (ssize_t)(sizeof h + bytes);
}

/* Send hello and data to all of them in parallel, for at most `ms`, and close each
 * connection then. With `answers`, by rank, it is a question: how many collectives the
 * rank has entered. The others may be asking, too, and are served meanwhile. */
static void contacts_run(struct tcp *n, struct contacts *all, int ms, int what,
                         const void *data, size_t bytes, uint64_t *answers)
{
    int culprit;
    struct ddp_err unwanted;
    int64_t until = now_ms() + ms, left = ms;
    while (left > 0 && all->n > 0 &&
           !(answers && tcp_failure_reported(n, &culprit, &unwanted))) {
        bool ready =
            await_contacts(n, all, answers, (int)(left < TURN_MS ? left : TURN_MS));
        for (size_t i = all->n; ready && i-- > 0;) {
            struct contact *c = &all->v[i];
            if (n->polled[i].revents == 0)
                continue;
            if (c->asked)
                (void)!recv(c->fd, &answers[c->rank], sizeof *answers, MSG_DONTWAIT);
            else if (send_report(n, c, what, data, bytes) && answers) {
                c->asked = true;
                continue;
            }
            close(c->fd);
            *c = all->v[--all->n];
        }
        left = until - now_ms();
    }
}

void tcp_report_failure(struct tcp *n, int culprit, const char *why, bool to_all)
{
    struct failure_report report = {.culprit = culprit};
    SCOPED(contacts_close) struct contacts all = {0};
    snprintf(report.why, sizeof report.why, "%s", why);
    for (int r = 0; r < n->layout->size; r++) {
        if (gets_report(n, r, culprit, to_all))
            contact(n, &all, r);
    }
    contacts_run(n, &all, FAILURE_MS, HELLO_FAILURE, &report, sizeof report, NULL);
}

void tcp_announce_leave(struct tcp *n, const int *ranks, int nranks)
{
    SCOPED(contacts_close) struct contacts all = {0};
    for (int i = 0; i < nranks; i++)
        contact(n, &all, ranks[i]);
    contacts_run(n, &all, FAILURE_MS, HELLO_LEAVE, n->entered, sizeof *n->entered, NULL);
}

int tcp_ask(struct tcp *n, uint64_t number, struct idset *late)
{
    int unasked = 0, size = n->layout->size;
    SCOPED(contacts_close) struct contacts all = {0};
    if (size > MOST_CONTACTS)
        return 0;
    OWNED uint64_t *entered = xcalloc((size_t)size, sizeof *entered);
    for (int r = 0; r < size; r++) {
        if (layout_is_here(n->layout, r)) {
            entered[r] = UINT64_MAX; /* known without asking */
        } else if (!contact(n, &all, r) && lacks_descriptors()) {
            entered[r] = UINT64_MAX; /* it is not to blame */
            unasked++;
        }
    }
    contacts_run(n, &all, ASK_MS, HELLO_ASK, NULL, 0, entered);
    for (int r = 0; r < size; r++) {
        if (entered[r] < number)
            idset_add(late, r, r);
    }
    return unasked;
}

/* ---- reports of calls ---- */

bool tcp_recv_calls(struct tcp *n, int *rank, struct recent_calls *theirs)
{
    for (int r = 0; n->nreports > 0 && r < n->layout->size; r++) {
        struct recent_calls *calls = n->peers[r] ? n->peers[r]->calls : NULL;
        if (!calls || calls->call[0].number > *n->entered)
            continue;
        *rank = r;
        *theirs = *calls;
        free(calls);
        n->peers[r]->calls = NULL;
        n->nreports--;
        return true;
    }
    return false;
}

/* Open a connection to report call `number` to the rank, unless it has been. */
static void begin_report(struct tcp *n, int rank, uint64_t number)
{
    struct peer *of = tcp_peer(n, rank);
    if (of->reported == number || n->reporting.n >= REPORTS)
        return;
    for (size_t i = 0; i < n->reporting.n; i++)
        if (n->reporting.v[i].rank == rank)
            return;
    of->reported = number;
    contact(n, &n->reporting, rank);
}

void tcp_send_calls(struct tcp *n, const struct recent_calls *mine)
{
    uint64_t number = mine->call[0].number;
    for (size_t i = 0; i < n->ninterests; i++)
        begin_report(n, n->interests[i].rank, number);
    for (int r = 0; r < n->layout->size; r++) {
        if (n->peers[r] && n->peers[r]->watched)
            begin_report(n, r, number);
    }
    contacts_run(n, &n->reporting, REPORT_MS, HELLO_CALLS, mine, sizeof *mine, NULL);
}

void tcp_forget_reports(struct tcp *n)
{
    while (n->accepted) {
        struct accepted *c = n->accepted;
        n->accepted = c->next;
        close_fd(&c->fd);
        free(c);
    }
    contacts_close(&n->reporting);
}
