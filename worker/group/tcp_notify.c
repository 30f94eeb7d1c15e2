/* worker/group/tcp_notify.c - short reports between ranks: why a group broke, how many
 * collectives a rank has entered, what it has called, that it leaves
 *
 * Reports use connections of their own, since the streams may be full or not open, and
 * go to all ranks in parallel. A rank reads them while it waits in a call of the
 * library; one that does not answer is not in such a call.
 */
#include "worker/group/tcp_impl.h"

#include "common/duration.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TELL_MS = 500,   /* for reports of a failure, in all */
    ASK_MS = 500,    /* for answers, in all */
    TELL_ALL = 1024, /* larger groups report to ranks with a stream only */
    REPORTS = 64,    /* calls are reported to so many ranks at a time */
    REPORT_MS = 1    /* for connections to complete */
};

bool tcp_answers(const struct tcp *n, int rank)
{
    const struct member *members = n->layout->members;
    if (members[rank].host == members[n->layout->rank].host)
        return false;
    struct pollfd p = {.fd = tcp_start_connect(&members[rank]), .events = POLLOUT};
    int why = 0;
    bool ended = p.fd >= 0 && poll(&p, 1, ASK_MS) > 0;
    bool answers = ended && getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &why,
                                       &(socklen_t){sizeof why}) == 0;
    if (p.fd >= 0)
        close(p.fd);
    return answers && why == 0;
}

/* ---- telling ---- */

static bool must_be_told(const struct tcp *n, int rank, int culprit,
                         enum tcp_audience audience)
{
    const struct layout *l = n->layout;
    if (rank == l->rank || rank == culprit ||
        l->members[rank].host == l->members[l->rank].host)
        return false;
    const struct streams *s = &n->streams[rank];
    return (audience == TCP_TO_ALL && l->size <= TELL_ALL) || s->in[TCP_COLL] >= 0 ||
           s->out[TCP_COLL] >= 0 || s->in[TCP_MESSAGE] >= 0 || s->out[TCP_MESSAGE] >= 0;
}

/* Send hello and data on all connections in p[], which is indexed by rank, in parallel.
 * A rank that does not take them has gone itself. */
static void tell(struct tcp *n, struct pollfd *p, int what, const void *data,
                 size_t bytes)
{
    int size = n->layout->size, waiting = 0;
    for (int r = 0; r < size; r++)
        waiting += p[r].fd >= 0;
    int64_t until = now_ms() + TELL_MS, left = TELL_MS;
    while (waiting > 0 && left > 0 && poll(p, (nfds_t)size, (int)left) > 0) {
        for (int r = 0; r < size; r++) {
            if (p[r].fd < 0 || p[r].revents == 0)
                continue;
            struct hello h = tcp_hello(n, r, what);
            struct iovec io[] = {{&h, sizeof h}, {(void *)(uintptr_t)data, bytes}};
            struct msghdr msg = {.msg_iov = io, .msg_iovlen = 2};
            (void)!sendmsg(p[r].fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
            close(p[r].fd);
            p[r].fd = -1;
            waiting--;
        }
        left = until - now_ms();
    }
    for (int r = 0; r < size; r++) {
        if (p[r].fd >= 0)
            close(p[r].fd);
    }
}

void tcp_tell_failure(struct tcp *n, int culprit, const char *why,
                      enum tcp_audience audience)
{
    struct failure_report report = {.culprit = culprit};
    snprintf(report.why, sizeof report.why, "%s", why);
    int size = n->layout->size;
    struct pollfd *p = xcalloc((size_t)size, sizeof *p);
    for (int r = 0; r < size; r++) {
        bool must = must_be_told(n, r, culprit, audience);
        p[r] =
            (struct pollfd){.fd = must ? tcp_start_connect(&n->layout->members[r]) : -1,
                            .events = POLLOUT};
    }
    tell(n, p, HELLO_TELL, &report, sizeof report);
    free(p);
}

void tcp_announce_leave(struct tcp *n, const int *ranks, int nranks)
{
    int size = n->layout->size;
    struct pollfd *p = xcalloc((size_t)size, sizeof *p);
    for (int r = 0; r < size; r++)
        p[r] = (struct pollfd){.fd = -1, .events = POLLOUT};
    for (int i = 0; i < nranks; i++)
        p[ranks[i]].fd = tcp_start_connect(&n->layout->members[ranks[i]]);
    tell(n, p, HELLO_LEAVE, n->entered, sizeof *n->entered);
    free(p);
}

/* ---- asking ---- */

struct question {
    const struct tcp *n;
    struct pollfd *p; /* by rank; fd -1: not asked, answered, or refused */
    bool *came;       /* by rank */
    uint64_t number;
};

/* Continue with one rank: send the question, or read the answer. */
static void continue_question(struct question *q, int rank)
{
    struct pollfd *p = &q->p[rank];
    if (p->events == POLLOUT) {
        struct hello h = tcp_hello(q->n, rank, HELLO_ASK);
        p->events = POLLIN;
        if (send(p->fd, &h, sizeof h, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof h)
            return;
    } else {
        uint64_t entered = 0;
        q->came[rank] = recv(p->fd, &entered, sizeof entered, MSG_DONTWAIT) ==
                            (ssize_t)sizeof entered &&
                        entered >= q->number;
    }
    close(p->fd);
    p->fd = -1;
}

int tcp_ask(struct tcp *n, uint64_t number, int *late, int max)
{
    int size = n->layout->size, waiting = 0, found = 0, culprit;
    struct ddp_err unwanted;
    if (size > TELL_ALL)
        return 0;
    struct question q = {.n = n, .number = number};
    q.p = xcalloc((size_t)size + 1, sizeof *q.p);
    q.came = xcalloc((size_t)size, sizeof *q.came);
    for (int r = 0; r < size; r++) {
        bool other =
            n->layout->members[r].host != n->layout->members[n->layout->rank].host;
        q.came[r] = !other;
        q.p[r] =
            (struct pollfd){.fd = other ? tcp_start_connect(&n->layout->members[r]) : -1,
                            .events = POLLOUT};
        waiting += q.p[r].fd >= 0;
    }
    int64_t until = now_ms() + ASK_MS;
    while (waiting > 0 && now_ms() < until && !tcp_failure_told(n, &culprit, &unwanted)) {
        /* the others may be asking, too: serve them meanwhile */
        q.p[size] = (struct pollfd){.fd = n->listener, .events = POLLIN};
        if (poll(q.p, (nfds_t)size + 1, 20) <= 0)
            continue;
        for (int r = 0; r < size; r++) {
            if (q.p[r].fd >= 0 && q.p[r].revents)
                continue_question(&q, r);
        }
        waiting = 0;
        for (int r = 0; r < size; r++)
            waiting += q.p[r].fd >= 0;
    }
    for (int r = 0; r < size; r++) {
        if (q.p[r].fd >= 0)
            close(q.p[r].fd);
        if (!q.came[r] && found < max)
            late[found++] = r;
    }
    free(q.p);
    free(q.came);
    return found;
}

/* ---- what is called ---- */

void tcp_keep_calls(struct tcp *n, int from, const struct said_calls *calls)
{
    struct received_calls *h = n->received;
    while (h && h->from != from)
        h = h->next;
    if (!h) {
        h = xcalloc(1, sizeof *h);
        h->from = from;
        h->next = n->received;
        n->received = h;
    }
    h->calls = *calls;
}

bool tcp_recv_calls(struct tcp *n, int *rank, struct said_calls *theirs)
{
    struct received_calls **at = &n->received, *h;
    while ((h = *at) && h->calls.call[0].number > *n->entered)
        at = &h->next;
    if (!h)
        return false;
    *rank = h->from;
    *theirs = h->calls;
    *at = h->next;
    free(h);
    return true;
}

static void start_reports(struct tcp *n, uint64_t number)
{
    const struct member *members = n->layout->members;
    if (!n->said) {
        n->said = xcalloc((size_t)n->layout->size, sizeof *n->said);
        n->reporting = xcalloc(REPORTS, sizeof *n->reporting);
    }
    for (size_t i = 0; i < n->ninterests + n->nwatched && n->nreporting < REPORTS; i++) {
        int rank =
            i < n->ninterests ? n->interests[i].rank : n->watched[i - n->ninterests];
        if (n->said[rank] == number)
            continue;
        n->said[rank] = number;
        int fd = tcp_start_connect(&members[rank]);
        if (fd >= 0)
            n->reporting[n->nreporting++] = (struct pending_report){fd, rank};
    }
}

void tcp_send_calls(struct tcp *n, const struct said_calls *mine)
{
    struct pollfd p[REPORTS];
    size_t left = 0;
    start_reports(n, mine->call[0].number);
    for (size_t i = 0; i < n->nreporting; i++)
        p[i] = (struct pollfd){.fd = n->reporting[i].fd, .events = POLLOUT};
    poll(p, n->nreporting, n->nreporting ? REPORT_MS : 0);
    for (size_t i = 0; i < n->nreporting; i++) {
        struct {
            struct hello hello;
            struct said_calls calls;
        } said = {tcp_hello(n, n->reporting[i].rank, HELLO_CALL), *mine};
        if (p[i].revents == 0) {
            n->reporting[left++] = n->reporting[i];
            continue;
        }
        /* a rank that does not take it has failed, which tcp_look() finds */
        (void)!send(p[i].fd, &said, sizeof said, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(p[i].fd);
    }
    n->nreporting = left;
}

void tcp_forget_calls(struct tcp *n)
{
    while (n->received) {
        struct received_calls *h = n->received;
        n->received = h->next;
        free(h);
    }
    for (size_t i = 0; i < n->nreporting; i++)
        close(n->reporting[i].fd);
    free(n->reporting);
    free(n->said);
}
